"""Executes one notebook with papermill, in a process of its own, and records how it ended.

papermill alone calls a notebook whose kernel was killed, or which left early, complete; it only warns of a misspelt
parameter and writes NaN into the file. Here a run is "done" only when the last code cell ran, the end mark of
finish() is there and every artifact verifies; everything else gets the status that says what happened.
"""

from __future__ import annotations

import ast
import difflib
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagelib import runs
from sagelib.kernel import die_with_parent
from sagelib.profiles import PROFILE_WORLD
from sagelib.runs import ROOT, RunError, now, read_json, write_json

BUSY = 75                # exit code: another process works on this run
SECRET = {"key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials"}
PACKAGES = ("torch", "transformers", "trl", "peft", "numpy", "papermill", "ipykernel")
NOISE = ("Kernel is running over TCP without encryption", "frozen modules are being used", "PYDEVD_DISABLE_FILE",
         "may cause the debugger to miss breakpoints", "to python to disable frozen modules", "Debugging will proceed")


# ---------------------------------------------------------------- parameters

MAX_DEPTH = 50           # of lists and dicts in a parameter; Python's parser takes about 90 brackets
MAX_BITS = 13000         # of an integer; Python writes and reads integers of up to 4300 digits


def normal(name: str, value: Any, depth: int = 0) -> Any:
    """The parameter as the notebook will see it: JSON values only. RunError for what would arrive as something else."""
    if isinstance(value, Path):
        value = str(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return _scalar(name, value)
    if depth >= MAX_DEPTH:
        raise RunError(f"parameter {name[:80]}: lists and dicts nested deeper than {MAX_DEPTH} cannot be written into a notebook")
    if type(value) is list:
        return [normal(f"{name}[{i}]", v, depth + 1) for i, v in enumerate(value)]
    if type(value) is dict:
        odd = [key for key in value if type(key) is not str]
        if odd:
            raise RunError(f"parameter {name}: key {odd[0]!r} is no text; a notebook would see it as one")
        return {_scalar(f"{name}, a key", key): normal(f"{name}.{key}", v, depth + 1) for key, v in value.items()}
    fix = "; use a list" if isinstance(value, (tuple, set, frozenset)) else ""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):   # a huge integer in it, or itself
        shown = "..."
    raise RunError(f"parameter {name} = {shown}: a {type(value).__name__} does not arrive unchanged{fix} "
                   f"(numbers, text, True, False, None, lists and dicts do)")


def _scalar(name: str, value: Any) -> Any:
    """A plain value that a notebook's file can hold and give back; RunError for one that it cannot."""
    if type(value) is float and not math.isfinite(value):
        raise RunError(f"parameter {name} = {value}: only finite numbers can be written into a notebook")
    if type(value) is int and value.bit_length() > MAX_BITS:
        raise RunError(f"parameter {name}: an integer of {value.bit_length()} bits cannot be written into a notebook")
    if type(value) is str and any("\ud800" <= c <= "\udfff" for c in value):
        raise RunError(f"parameter {name} = {value!r}: holds half a character (a lone surrogate), which no file can hold")
    return value


def declared(notebook: Path) -> dict[str, Any]:
    """Names and defaults of the notebook's one parameters cell. RunError when there is none, two, or code in it."""
    if not notebook.exists():
        near = difflib.get_close_matches(notebook.stem, [p.stem for p in notebook.parent.glob("*.ipynb")], 1)
        raise RunError(f"there is no notebook {notebook}" + (f"; did you mean {near[0]}?" if near else ""))
    cells = [c for c in runs.notebook_cells(notebook) if "parameters" in c["tags"]]
    if len(cells) != 1:
        raise RunError(f"{notebook.name} has {len(cells)} cells tagged 'parameters', it needs exactly one")
    found = {}
    for line in ast.parse(cells[0]["source"]).body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        try:
            found[target.id] = ast.literal_eval(line.value)
        except (AttributeError, ValueError):
            raise RunError(f"{notebook.name}: the parameters cell holds more than NAME = literal: "
                           f"{ast.unparse(line)}") from None
    return found


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, normalised; RunError for a name that the notebook lacks, a secret, or an unfit value."""
    known = declared(notebook)
    for name in parameters:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower().split("_")   # hfToken -> hf, token
        if SECRET.intersection(words):
            raise RunError(f"parameter {name}: looks like a secret, and parameters are stored with the run; "
                           f"use an environment variable")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.6)
            raise RunError(f"{notebook.stem} has no parameter {name!r}; "
                           + (f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"))
    return {name: normal(name, value) for name, value in parameters.items()}


# ---------------------------------------------------------------- the parent's side

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
        self.run_id = runs.run_id(self.notebook, self.parameters, world and world["hash"],
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


def kill_leftovers(directory: Path) -> None:
    """Ends every process that carries this run's mark in its environment, except this one."""
    import psutil
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("SAGELIB_RUN") == str(directory):
                process.kill()
        except (psutil.Error, OSError):
            pass   # ended meanwhile, or another user's


def tail(directory: Path, lines: int = 3) -> str:
    """The last lines of a run's log without what every kernel prints."""
    try:
        text = (directory / "log.txt").read_text(errors="replace")
    except OSError:
        return ""
    wanted = [line.strip() for line in text.splitlines() if line.strip() and not any(n in line for n in NOISE)]
    return " | ".join(wanted[-lines:])[-600:]


# ---------------------------------------------------------------- the runner's side

class Runner:
    """The process around one papermill execution: keeps the record, stops on time or on a signal."""

    def __init__(self, request: dict) -> None:
        self.notebook, self.dir = Path(request["notebook"]), Path(request["directory"])
        self.timeout, self.record = request["timeout"], dict(request["record"])
        self.threads, self.force = request["threads"], request["force"]
        self.verdict: tuple[str, str] | None = None   # decided from outside: timed_out or interrupted
        self.cell, self.cells, self.kernel = 0, 0, None
        self.completed = False                        # the last code cell ran
        self.source, self.first_cell = "", threading.Event()

    def begin(self) -> None:
        """The record says running, and nothing of an earlier attempt can pass for a result of this one."""
        self.sockets = tempfile.mkdtemp(prefix="sagelib-")
        kill_leftovers(self.dir)
        before = read_json(self.dir / "run.json") or {}
        if self.force:   # not even checkpoints: what was forced starts from nothing
            for path in self.dir.iterdir():
                if path.name not in ("lock", "log.txt"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("end.json", "results.json", "config.json", "progress.json", "executed.ipynb"):
            (self.dir / name).unlink(missing_ok=True)
        self.started = time.time()
        self.record |= {"started": now(), "ended": None, "seconds": None, "status": "running", "reason": "",
                        "attempt": before.get("attempt", 0) + 1, "artifacts": {}, "parameters_seen": None,
                        "versions": versions(), "git": git_state(), "pid": os.getpid(),
                        "python": sys.version.split()[0],
                        "host": {"system": sys.platform, "cores": os.cpu_count(), "threads": self.threads}}
        write_json(self.dir / "run.json", self.record)

    def watch(self) -> None:
        """Signals and the time limit end the run from threads of their own, whatever the main thread does."""
        signals = {signal.SIGTERM, signal.SIGINT}

        def wait_for_signal() -> None:
            sign = signal.sigwait(signals)
            self.end_early("interrupted", f"stopped by {signal.Signals(sign).name}")

        def wait_for_deadline() -> None:
            self.first_cell.wait()   # starting a kernel has a limit of its own
            time.sleep(self.timeout)
            self.end_early("timed_out", f"longer than {self.timeout:g} s, in {self.where()}")

        threading.Thread(target=wait_for_signal, daemon=True).start()
        if self.timeout:
            threading.Thread(target=wait_for_deadline, daemon=True).start()

    def end_early(self, status: str, reason: str) -> None:
        """Kills the notebook's kernel; the main thread then records the verdict, or this one when it hangs."""
        self.verdict = self.verdict or (status, reason)
        kill_leftovers(self.dir)
        time.sleep(8)
        kill_leftovers(self.dir)
        self.finish(*self.verdict)
        os._exit(1)

    def where(self) -> str:
        """The cell that runs, in words."""
        source = self.source.strip().splitlines() if self.cell else []
        return f"cell {self.cell} of {self.cells}" + (f" ({source[0][:60]})" if source else "")

    def run(self) -> tuple[str, str]:
        """Executes the notebook; (status, reason) of how it ended."""
        sys.modules.setdefault("rfc3987_syntax", None)   # jsonschema would spend 2 s on a grammar for URLs we lack
        import papermill
        from papermill.exceptions import PapermillExecutionError
        register_engine(self)
        try:
            write_kernelspec(self.dir)
            papermill.execute_notebook(
                str(self.notebook), str(self.dir / "executed.ipynb"), self.record["parameters"], cwd=str(ROOT),
                engine_name="sagelib", kernel_name="python3", progress_bar=False, start_timeout=120)
        except PapermillExecutionError as error:
            if error.ename == "SystemExit":
                return "incomplete", f"left by sys.exit({error.evalue}) in {self.where()}"
            return "failed", f"{error.ename}: {error.evalue[:500]} in {self.where()}"
        except OSError as error:
            hint = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
            return "failed", f"{error.strerror or error} ({error.filename or self.dir}){hint}"
        except Exception as error:
            code = self.kernel.poll() if self.kernel else None
            if code is not None and code < 0:
                return "died", f"the kernel was killed by {signal.Signals(-code).name} in {self.where()}"
            if self.cell and code == 0:
                return "incomplete", f"the kernel left by itself in {self.where()}"
            return "failed", f"{type(error).__name__}: {error} in {self.where()}"
        return self.judge()

    def judge(self) -> tuple[str, str]:
        """(status, reason) of a notebook that papermill calls complete."""
        code = self.kernel.poll() if self.kernel else None
        if code is not None and code < 0 and code != -signal.SIGTERM:
            return "died", f"the kernel was killed by {signal.Signals(-code).name} in {self.where()}"
        end = read_json(self.dir / "end.json")
        if end is None or not self.completed:
            return "incomplete", f"it left before its end (run.finish is missing), last seen in {self.where()}"
        for name, sha in end["artifacts"].items():
            path = self.dir / name
            if not path.exists() or runs.content_hash(path) != sha:
                return "failed", f"artifact {name} is missing or changed after finish()"
        self.record["artifacts"] = end["artifacts"]
        return "done", ""

    def finish(self, status: str, reason: str) -> bool:
        """The record on disk has its final status; False when it cannot be written."""
        self.record |= {"status": status, "reason": reason, "ended": now(),
                        "seconds": round(time.time() - self.started, 1),
                        "parameters_seen": read_json(self.dir / "config.json")}
        try:
            write_json(self.dir / "run.json", self.record)
        except OSError as error:
            print(f"could not write run.json ({status}: {reason}): {error}", flush=True)
            return False
        return True


def register_engine(runner: Runner) -> None:
    """papermill's engine "sagelib": the usual one, telling the runner which cell runs and which process runs it."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Client(PapermillNotebookClient):
        def start_new_kernel(self, **kwargs: Any) -> None:
            # Not TCP: the port is chosen before the kernel binds it, and two runs that start together can choose one.
            # The directory's name is short: a socket's path may have 107 characters, the run's directory has more.
            self.km.transport, self.km.ip = "ipc", os.path.join(runner.sockets, "k")
            super().start_new_kernel(env=kernel_env(runner), **kwargs)
            runner.kernel = self.km.provisioner.process

        def papermill_execute_cells(self) -> None:
            last = max((i for i, c in enumerate(self.nb.cells) if c.cell_type == "code"), default=-1)
            runner.cells, start = len(self.nb.cells), self.nb_man.cell_start

            def cell_start(cell: Any, index: int, **kwargs: Any) -> None:
                if runner.verdict:
                    raise RuntimeError("stopped")
                runner.cell, runner.source = index + 1, cell.source
                runner.first_cell.set()
                start(cell, index, **kwargs)

            self.nb_man.cell_start = cell_start
            super().papermill_execute_cells()
            runner.completed = last >= 0 and self.nb.cells[last].execution_count is not None

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, start_timeout: int = 60, **_: Any) -> Any:
            return Client(nb_man, kernel_name=kernel_name, startup_timeout=start_timeout, timeout=None).execute()

    papermill_engines.register("sagelib", Engine)


def write_kernelspec(directory: Path) -> None:
    """A private "python3" kernel that is this interpreter, whatever kernels the user has installed under that name.

    $SAGELIB_KERNEL: another script that starts it (the tests').
    """
    spec = directory / ".kernel" / "kernels" / "python3"
    spec.mkdir(parents=True, exist_ok=True)
    starter = [os.environ["SAGELIB_KERNEL"]] if "SAGELIB_KERNEL" in os.environ else ["-m", "sagelib.kernel"]
    write_json(spec / "kernel.json", {"argv": [sys.executable, "-P", *starter, "-f", "{connection_file}"],
                                      "display_name": "python3", "language": "python"})
    os.environ["JUPYTER_PATH"] = str(directory / ".kernel")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(directory / ".kernel")


def kernel_env(runner: Runner) -> dict[str, str]:
    """The kernel's environment: the mark of its run, its share of the cores, no user configuration."""
    threads = str(runner.threads)
    return os.environ | {
        "SAGELIB_RUN": str(runner.dir), "SAGELIB_INPUTS": json.dumps(runner.record["inputs"]),
        "SAGELIB_RUNNER": str(os.getpid()), "IPYTHONDIR": str(runner.dir / ".kernel" / "ipython"),
        "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}


def versions() -> dict[str, str]:
    """Versions of the packages that decide results."""
    from importlib.metadata import PackageNotFoundError, version
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def git_state() -> dict | None:
    """{commit, dirty} of this checkout, None outside git."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=10)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"commit": commit.stdout.strip(), "dirty": bool(status.stdout)} if commit.returncode == 0 else None


def main() -> int:
    """Exit code 0 when the run is done, BUSY when it is another's, 1 otherwise. Reads its request from stdin."""
    request = json.load(sys.stdin)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    die_with_parent(signal.SIGTERM, request["parent"])
    runner = Runner(request)
    held = None
    for _ in range(10):   # a reader of the status holds the lock for an instant
        held = runs.lock(runner.dir)
        if held is not None:
            break
        time.sleep(0.1)
    if held is None:
        return BUSY
    if not request["force"] and runs.fault(runner.dir) is None:   # another process finished it meanwhile
        return 0
    runner.begin()
    runner.watch()
    status, reason = runner.run()
    status, reason = runner.verdict or (status, reason)
    kill_leftovers(runner.dir)
    shutil.rmtree(runner.dir / ".kernel", ignore_errors=True)
    shutil.rmtree(runner.sockets, ignore_errors=True)
    return 0 if runner.finish(status, reason) and status == "done" else 1


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())   # no interpreter shutdown: threads of papermill's kernel client may still wait
