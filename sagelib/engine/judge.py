"""The judge: evaluates saved end states against the ground truth.

It never runs agent code, and talks to the client directly, so that nothing it knows ever passes through the memory of a
process from which agents are forked. A guard above it does nothing but replace it when it dies or hangs.

What it trusts: the agent's process writes its own end state (dbs/*.jsonl), so hostile code can write any state it
likes. It can therefore skip an API's rules, but it cannot see the tests or the answer, the start state comes from the
judge's own files, and a state that is missing, oversized, not a plain file or not JSON is a failed task, never a
fault of ours.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import time
import traceback

import sandbox
from appworld.apps.model_lib import CachedDBHandler, get_db_home_path, get_direct_cached_sqlite3_connection
from appworld.common.path_store import path_store
from appworld.evaluator import evaluate_task

STATE_BYTES = 64 << 20  # an end state of the mini-world is below 1 MB
JOB_SECONDS = 20.0
WATCH_SECONDS = 0.1  # the guard looks so often whether its judge lives
JOBS_PER_CHILD = 8  # a forked child costs as much CPU as two evaluations: no more of them than are worth it


def _state_fault(directory: str, start: str) -> str | None:
    """Why the saved state cannot be evaluated, or None. It must have the same files as the task's start state."""
    for name in [*sorted(name for name in os.listdir(start) if name.endswith(".jsonl")), "model_hashes.json"]:
        path = os.path.join(directory, name)
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size > STATE_BYTES:
                return f"{name} is not a plain file of a sane size"
            with open(path) as file:
                for text in file if name.endswith(".jsonl") else [file.read()]:
                    json.loads(text)
        except (OSError, ValueError) as error:
            return f"{name}: {error}"
    return None


def evaluate(task_id: str, directory: str) -> dict:
    """Outcome of one saved episode: passed, total, success, failures (requirement texts), status."""
    start = os.path.join(path_store.data, "tasks", task_id)
    try:
        fault = _state_fault(os.path.join(directory, "tasks", task_id, "dbs"), os.path.join(start, "dbs"))
        if fault:
            with open(os.path.join(start, "ground_truth", "test_data.json")) as file:
                total = len(json.load(file))
            return dict(
                passed=0, total=total, success=False, failures=[f"no usable end state: {fault}"], status="judged"
            )
        report = evaluate_task(task_id=task_id, experiment_name=directory, suppress_errors=True, save_report=False)
        return dict(
            passed=report.pass_count,
            total=report.num_tests,
            success=report.success,
            failures=[failure["requirement"] for failure in report.failures],
            status="judged",
        )
    except Exception as error:
        traceback.print_exc()  # to the server's log
        return _fault(f"the evaluation of {task_id} raised {type(error).__name__}: {error}; see the engine's log")
    finally:
        CachedDBHandler.reset("task_output-")  # the start state, which only the judge writes, serves the task's next one


def _fault(reason: str) -> dict:
    return dict(passed=0, total=0, success=False, failures=[reason], status="env_failure")


def _work(jobs: list[tuple[str, str]]) -> tuple[int, int]:
    """Start one forked child that evaluates jobs in order; its process id and the pipe its results come through."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.die_with_parent()
            os.close(read)
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            for job, before in zip(jobs, [None, *jobs], strict=False):
                if before and before[0] != job[0]:
                    CachedDBHandler.reset()
                os.write(write, json.dumps(evaluate(*job)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    return pid, read


def _collect(pid: int, read: int) -> list[dict]:
    """Results of a child of `_work`, then gone; fewer than its jobs when it died, or took JOB_SECONDS, on one."""
    data = b""
    while select.select([read], [], [], JOB_SECONDS)[0]:
        chunk = os.read(read, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read)
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def judge_batch(jobs: list[tuple[str, str]], parallel: int) -> list[dict]:
    """Outcomes in the order of `jobs`, by forked children (an engine process grows by about 1 MB per evaluation).

    A state that kills or hangs the judge's child costs only itself: the jobs left over are tried again, one child each.
    """
    parallel = min(parallel, -(-len(jobs) // JOBS_PER_CHILD))
    shares = [jobs[start::parallel] for start in range(parallel)]
    outcomes: list[dict | None] = [None] * len(jobs)
    for start, child in enumerate([_work(share) for share in shares]):
        for position, outcome in enumerate(_collect(*child)):
            outcomes[start + position * parallel] = outcome
    for index, job in enumerate(jobs):
        if outcomes[index] is None:
            outcomes[index] = (_collect(*_work([job])) or [_fault("the judge's process died or hung on this state")])[0]
    return outcomes


def guard(client: socket.socket, root: str, parallel: int, warm: tuple[str, str]) -> None:
    """Keep one judge at the client's service until the client goes: what comes through `client` is a socket to each.

    A judge that dies is replaced at once, one that the client gives up when it sends a byte.
    """
    path_store.update_root(root)
    get_db_home_path.cache_clear()  # it keeps absolute paths, of the agent's root until now
    evaluate(*warm)  # first use imports; paid once, before any fork
    CachedDBHandler.reset()  # no SQLite handle of ours may cross a fork
    get_direct_cached_sqlite3_connection.cache_clear()
    while True:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.die_with_parent()
                client.close()
                theirs.close()
                serve(ours, parallel)
            finally:
                os._exit(0)
        ours.close()
        with contextlib.suppress(OSError), theirs:  # a client that has gone is noticed below
            socket.send_fds(client, [b"j"], [theirs.fileno()])
        if not _replace(client, pid):
            return


def _replace(client: socket.socket, pid: int) -> bool:
    """Wait until the judge is dead or unwanted, then True; False when the client has gone. The judge is gone either way."""
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if select.select([client], [], [], WATCH_SECONDS)[0]:
            wanted = bool(client.recv(1))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return wanted
    return not (select.select([client], [], [], 0)[0] and not client.recv(1))


def serve(channel: socket.socket, parallel: int) -> None:
    """Answer {"id", "jobs": [[task_id, directory], ...]} with {"id", "outcomes"} until the client goes."""
    with channel.makefile("rwb") as stream:
        for line in stream:
            request = json.loads(line)
            began = time.clock_gettime(time.CLOCK_MONOTONIC)
            outcomes = judge_batch([tuple(job) for job in request["jobs"]], parallel)
            seconds = time.clock_gettime(time.CLOCK_MONOTONIC) - began
            stream.write(json.dumps(dict(id=request["id"], outcomes=outcomes, seconds=seconds)).encode() + b"\n")
            stream.flush()
