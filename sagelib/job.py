"""One notebook to execute, seen by who asks for it: `Job` starts `sagelib.runner` in a process of its own and watches it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagelib import run_ids, runs
from sagelib.parameters import check_parameters, declared
from sagelib.profiles import PROFILE_WORLD
from sagelib.runner import BUSY, kill_leftovers
from sagelib.runs import ROOT, RunError, now, read_json, write_json

NOISE = ("Kernel is running over TCP without encryption", "frozen modules are being used", "PYDEVD_DISABLE_FILE",
         "may cause the debugger to miss breakpoints", "to python to disable frozen modules", "Debugging will proceed")


class Job:
    """One notebook to execute: start() it, poll() it, read its record(). RunError at once when it cannot be run."""

    def __init__(self, notebook: Path | str, parameters: Mapping[str, Any], inputs: Sequence[Path] = (),
                 timeout: float | None = None, threads: int | None = None, force: bool = False) -> None:
        self.notebook = Path(notebook) if str(notebook).endswith(".ipynb") else ROOT / "notebooks" / f"{notebook}.ipynb"
        self.parameters = check_parameters(self.notebook, parameters)
        effective = declared(self.notebook) | self.parameters
        profile = effective.get("profile", "laptop")
        seed = self.parameters.get("seed")   # None when nobody chose one: such a run serves every seed
        world = runs.world_record(effective.get("world") or PROFILE_WORLD.get(profile, profile))
        self.inputs = [_as_input(path) for path in inputs]
        self.run_id = run_ids.run_id(self.notebook, self.parameters, world and world["hash"],
                                     [_content(path) for path in inputs])
        self.dir = runs.runs_root() / profile / f"{self.notebook.stem}-{self.run_id}"
        self.start_record = {"run_id": self.run_id, "notebook": self.notebook.stem, "profile": profile, "seed": seed,
                             "parameters": self.parameters, "inputs": self.inputs, "world": world}
        self.timeout, self.threads, self.force = timeout, threads or os.cpu_count() or 1, force
        self.process: subprocess.Popen | None = None
        self._stopped, self._unwritten = False, None   # the record, where the disk no longer takes it

    def start(self) -> None:
        """The notebook runs in a new process afterwards. Call from a thread that lives as long as the run."""
        self.dir.mkdir(parents=True, exist_ok=True)
        request = {"notebook": str(self.notebook), "directory": str(self.dir), "record": self.start_record,
                   "timeout": self.timeout, "threads": self.threads, "force": self.force, "parent": os.getpid()}
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        with open(self.dir / "log.txt", "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-P", "-m", "sagelib.runner"], stdin=subprocess.PIPE,
                                            stdout=log, stderr=log, cwd=ROOT, env=env, start_new_session=True)
        self.process.stdin.write(json.dumps(request).encode())
        self.process.stdin.close()

    def poll(self) -> int | None:
        """None while it runs, BUSY when another process works on the same run, else another exit code."""
        code = self.process.poll()
        if code is not None and code != BUSY:
            self._settle(code)
        return code

    def _settle(self, code: int) -> None:
        """The record of a runner that was itself killed says so, and what it left running is gone."""
        kill_leftovers(self.dir)
        record = read_json(self.dir / "run.json")
        if record is None or record["status"] == "running":
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._end("died", f"its runner was {how}: {tail(self.dir)}", record)

    def _end(self, status: str, reason: str, record: dict | None) -> None:
        """The record says how it ended; `interrupted` when it was asked to stop, whatever the status."""
        record = (record or self.start_record | {"started": now(), "artifacts": {}}) | {
            "status": "interrupted" if self._stopped else status, "ended": now(),
            "reason": "stopped by the user" if self._stopped else reason}
        try:
            write_json(self.dir / "run.json", record)
        except OSError as error:
            gone = "its directory was deleted while it ran"
            reason = f"its record cannot be written: {error.strerror}" if self.dir.is_dir() else gone
            self._unwritten = record | {"reason": f"{reason} ({self.dir})", "directory": str(self.dir)}

    def terminate(self) -> None:
        """Asks the run to end, and does not wait for it."""
        self.process.terminate()

    def stop(self, patience_s: float = 15.0) -> None:
        """Asks the run to end (status interrupted), insists after a while; nothing of it runs afterwards."""
        self._stopped = True
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.poll()

    def record(self) -> dict:
        """The run's record now."""
        return self._unwritten or runs.read_run(self.dir)


def _content(directory: Path) -> str:
    """What a run made, whichever code made it: a collection that comes out the same again leaves its policies valid."""
    record = runs.read_run(directory)
    return json.dumps([record["notebook"], record["parameters"], record["artifacts"]], sort_keys=True)


def _as_input(directory: Path) -> dict:
    problem = runs.fault(directory)
    if problem:
        raise RunError(f"{directory.name} cannot be an input: {problem}")
    record = runs.read_run(directory)
    return {name: record[name] for name in ("run_id", "notebook", "parameters", "seed", "directory")}


def execute(notebook: Path | str, parameters: Mapping[str, Any], inputs: Sequence[Path] = (),
            timeout: float | None = None, threads: int | None = None, force: bool = False) -> dict:
    """Runs a notebook (a path, or a name in notebooks/) to its end and returns its record, whatever its status.

    A run that is done and verifies is not run again unless `force`. `timeout` is in seconds, for all cells together.
    """
    job = Job(notebook, parameters, inputs, timeout, threads, force)
    if not force and runs.fault(job.dir) is None:
        return job.record()
    job.start()
    try:
        while job.poll() is None:
            time.sleep(0.05)
    except BaseException:
        job.stop()
        raise
    if job.process.returncode == BUSY:
        raise RunError(f"{job.dir.name} is being run by process {(job.dir / 'lock').read_text() or '?'}")
    return job.record()


def tail(directory: Path, lines: int = 3) -> str:
    """The last lines of a run's log without what every kernel prints."""
    try:
        text = (directory / "log.txt").read_text(errors="replace")
    except OSError:
        return ""
    wanted = [line.strip() for line in text.splitlines() if line.strip() and not any(n in line for n in NOISE)]
    return " | ".join(wanted[-lines:])[-600:]
