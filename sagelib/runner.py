"""Executes one notebook with papermill, in a process of its own, and records how it ended.

papermill alone calls a notebook whose kernel was killed, or which left early, complete. Here a run is "done" only when the
last code cell ran, the end mark of finish() is there and every artifact verifies; everything else gets the status that says
what happened.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sagelib import runs
from sagelib.kernel import die_with_parent
from sagelib.runs import ROOT, now, read_json, write_json

BUSY = 75                # exit code: another process works on this run
PACKAGES = ("torch", "transformers", "trl", "peft", "numpy", "papermill", "ipykernel")


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


def kill_leftovers(directory: Path) -> None:
    """Ends every process that carries this run's mark in its environment, except this one."""
    import psutil
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("SAGELIB_RUN") == str(directory):
                process.kill()
        except (psutil.Error, OSError):
            pass   # ended meanwhile, or another user's


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
