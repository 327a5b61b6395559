"""Executes nodes of the graph on a Ray cluster: the same runs, each started on a machine that has cores free.

Ray only places processes. Everything else goes through files: this checkout (code, .venvs/, data/) and runs/ must be on a file
system that all machines have at the same path, with locks that hold across machines (NFS 4 has them; NFS 3 needs its lock
service). `Cluster` looks whether every machine sees the folder and has the same packages, and refuses otherwise; locks it
cannot check. Nothing is tried twice by itself: a run whose machine is lost is "died", and the same command goes on from
its last checkpoint. Ray's workers have a niceness of 15 unless `ray start` had RAY_worker_niceness=0 in its environment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sagelib.job import Job
from sagelib.runner import BUSY, versions
from sagelib.runs import ROOT, RunError, read_json, runs_root

VISIBLE_S = 90   # a network file system may show another machine's files a minute late
LOOK_S = 120     # to start a worker on a machine and look around
FITS_S = 20      # how often a run that waits for a machine is checked to have one


def environment() -> dict[str, str]:
    """What a worker's process gets: this checkout's library and the settings of the workbench."""
    return {name: value for name, value in os.environ.items() if name.startswith("SAGELIB_")} | {"PYTHONPATH": str(ROOT)}


def look(token: str) -> dict[str, Any]:
    """Runs on each machine: what it sees of the shared folder, and its versions."""
    return {"host": socket.gethostname(), "sees": os.path.exists(token), "has": versions() | {"python": sys.version.split()[0]}}


def execute(request: dict[str, Any], expected: str) -> int:
    """Runs on the machine that Ray chose: the whole life of one run. Returns its runner's exit code."""
    job = Job(**request)
    if job.run_id != expected:
        raise RunError(f"{socket.gethostname()} would make run {job.run_id} of what is {expected} here: its code or data differ")
    job.start()
    try:
        while (code := job.poll()) is None:
            time.sleep(0.1)
    except BaseException:   # cancelled: Ray raises KeyboardInterrupt here
        job.stop()
        raise
    return code


class Cluster:
    """The executor: `jobs` runs at once (default: one per machine), each with `cpus` cores and its share of the GPUs.

    RunError when there is a machine that cannot be used. $RAY_ADDRESS names a cluster; without it one that was started on
    this machine (`ray start`) is used, else Ray is started here alone.
    """

    def __init__(self, jobs: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")   # sends nothing anywhere
        before = signal.getsignal(signal.SIGTERM)
        if not ray.is_initialized():
            try:
                ray.init(log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise RunError(f"no Ray cluster: {error}") from None
            signal.signal(signal.SIGTERM, before)               # Ray puts its own in
        nodes = alive()
        if not nodes:
            raise RunError("the Ray cluster has no machine with a core")
        check(nodes)
        self.jobs = jobs or len(nodes)
        self.cpus, self.gpus = share(cores(nodes, "CPU"), self.jobs), share(cores(nodes, "GPU"), self.jobs, least=0)

    def job(self, *args: Any, **options: Any) -> RayJob:
        """As `job.Job`."""
        return RayJob(self, *args, **options)

    def threads(self, together: int) -> int:
        """Threads of a run: its cores, however many run at once."""
        return max(1, self.cpus)

    def submit(self, function: Any, *args: Any, **options: Any) -> ray.ObjectRef:
        """Starts a function of this module on a machine that has the cores."""
        needs = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0, "runtime_env": {"env_vars": environment()}}
        return ray.remote(function).options(**needs | options).remote(*args)

    def fits(self) -> bool:
        """False when no machine that is left has the cores and GPUs of one run."""
        left = alive()
        return any(c >= self.cpus and g >= self.gpus for c, g in zip(cores(left, "CPU"), cores(left, "GPU"), strict=True))


def alive() -> list[dict[str, Any]]:
    """The machines of the cluster that are there and have cores."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def cores(nodes: Sequence[dict[str, Any]], kind: str) -> list[int]:
    """CPU or GPU of each machine."""
    return [int(node["Resources"].get(kind, 0)) for node in nodes]


def share(cores_N: Sequence[int], jobs: int, least: int = 1) -> int:
    """The most cores that each of so many runs can have at once, none split over machines; `least` if there are too many runs."""
    return next((n for n in range(max(cores_N, default=0), 0, -1) if sum(c // n for c in cores_N) >= jobs), least)


def check(nodes: Sequence[dict[str, Any]]) -> None:
    """RunError names the machines that do not see runs/ as this one does, or have other packages."""
    root, problems = runs_root(), []
    root.mkdir(parents=True, exist_ok=True)
    token = root / f".ray-{os.getpid()}-{time.time_ns()}"
    token.touch()
    try:
        here, task, options = look(str(token)), ray.remote(look), {"num_cpus": 0, "runtime_env": {"env_vars": environment()}}
        asked = [task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False), **options)
                 .remote(str(token)) for node in nodes]
        for node, answer in zip(nodes, asked, strict=True):
            try:
                seen = ray.get(answer, timeout=LOOK_S)
            except Exception as error:   # whatever keeps a worker from starting: no library, no python, no answer
                problems.append(f"{node['NodeManagerAddress']}: {short(error)}")
                continue
            if not seen["sees"]:
                problems.append(f"{seen['host']} does not see {root}, which must be on a file system that all machines share")
            problems += [f"{seen['host']} has {name} {seen['has'][name]}, here is {version}"
                         for name, version in here["has"].items() if seen["has"][name] != version]
    finally:
        token.unlink(missing_ok=True)
    if problems:
        raise RunError("the Ray cluster cannot run this: " + "; ".join(problems))


def short(error: BaseException) -> str:
    """An error of Ray in one line: the cause in the task, where it has one."""
    cause = getattr(error, "cause", None) or error
    text = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
    return (text if isinstance(cause, RunError) else f"{type(cause).__name__}: {text}")[:400]


class RayJob(Job):
    """A `job.Job` on another machine: the same record, in the same directory."""

    def __init__(self, cluster: Cluster, notebook: Any, *args: Any, **options: Any) -> None:
        super().__init__(notebook, *args, **options)
        self.cluster, self.given = cluster, [Path(given["directory"]) for given in self.inputs]
        self.result: tuple[float, int | Exception] | None = None   # when it was there, and what it was
        self.looked = time.time()

    def start(self) -> None:
        """Ray has it afterwards; it begins when a machine has the cores."""
        self.dir.mkdir(parents=True, exist_ok=True)
        request = {"notebook": str(self.notebook), "parameters": self.parameters, "inputs": self.given, "timeout": self.timeout,
                   "threads": self.threads, "force": self.force}
        self.before = read_json(self.dir / "run.json")
        self.reference = self.cluster.submit(execute, request, self.run_id)

    def poll(self) -> int | None:
        """As `Job.poll`. A lost machine is an exit code of 1 and a record that says so."""
        if self.result is None:
            if not ray.wait([self.reference], timeout=0)[0]:
                return self._without_a_machine()
            try:
                self.result = time.time(), ray.get(self.reference)
            except Exception as error:
                self.result = time.time(), error
        since, result = self.result
        record = read_json(self.dir / "run.json")
        if result == BUSY or (record and record != self.before and record["status"] != "running"):
            return result if isinstance(result, int) else 1
        if isinstance(result, int) and time.time() - since < VISIBLE_S:
            return None
        self._end(*ended(result), None if record == self.before else record)
        return 1

    def _without_a_machine(self) -> int | None:
        """None, or 1 when it has not begun and no machine is left that could begin it."""
        if time.time() - self.looked > FITS_S:
            self.looked = time.time()
            if read_json(self.dir / "run.json") == self.before and not self.cluster.fits():
                ray.cancel(self.reference, force=True)
                self.result = time.time(), RuntimeError(f"no machine of the cluster has {self.cluster.cpus} cores any more")
        return None

    def terminate(self) -> None:
        """As `Job.terminate`."""
        ray.cancel(self.reference)

    def stop(self, patience_s: float = 30.0) -> None:
        """As `Job.stop`, on its machine."""
        self._stopped = True
        for force in (False, True):
            ray.cancel(self.reference, force=force)
            if ray.wait([self.reference], timeout=patience_s)[0]:
                break
        if self.poll() is None:
            self._end("interrupted", "", read_json(self.dir / "run.json"))


def ended(result: int | Exception) -> tuple[str, str]:
    """(status, reason) of a run that left no final record here."""
    if isinstance(result, int):
        return "failed", f"it ended on its machine (exit code {result}), but its record did not appear here: is runs/ shared?"
    if isinstance(getattr(result, "cause", None), RunError):
        return "failed", short(result)
    return "died", f"its Ray task was lost: {short(result)}"
