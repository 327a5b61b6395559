"""Runs a graph of notebooks: what is done stays, what is ready runs together, a failure stops only what needs it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sagelib import runs
from sagelib.graph import Node
from sagelib.job import Job
from sagelib.runner import BUSY
from sagelib.runs import RunError, read_json


def minutes(seconds: float) -> str:
    """3:05 for 185 seconds, 1:02:03 beyond an hour."""
    whole = int(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole // 60 % 60:0{2 if hours else 1}d}:{whole % 60:02d}"


class Local:
    """Where nodes are executed: here, each in a process of its own. `ray_jobs.Cluster` is another such place."""

    job = staticmethod(Job)

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = max(1, jobs or min(4, os.cpu_count() or 1))

    def threads(self, together: int) -> int:
        """Threads of each of so many jobs that run at once."""
        return max(1, (os.cpu_count() or 1) // together)


class Scheduler:
    """Executes the chosen nodes, `jobs` at a time (a number: here; or an executor, which says how many and where).

    After run(): `records` by node index, `blocked` with reasons.
    """

    def __init__(self, nodes: Sequence[Node], chosen: set[int], jobs: int | Any, forced: set[int] = frozenset()) -> None:
        self.nodes, self.chosen, self.forced = nodes, chosen, forced
        self.executor = Local(jobs) if isinstance(jobs, int) else jobs
        self.records: dict[int, dict] = {}
        self.blocked: dict[int, str] = {}
        self.running: dict[int, Job] = {}
        self.begun: dict[int, float] = {}
        self.waiting: dict[int, float] = {}   # run by another process: when to look again
        self.screen = Screen()

    def run(self) -> bool:
        """True when every chosen node is done. Whatever happens, no notebook runs afterwards."""
        try:
            while len(self.records) + len(self.blocked) < len(self.chosen):
                self._start_ready()
                self._collect()
                self.screen.show([self._line(i) for i in self.running])
                time.sleep(0.1 if self.running or self.waiting else 0)
        finally:
            for job in self.running.values():
                job.terminate()
            for job in self.running.values():
                job.stop()
        return not self.blocked and all(r["status"] == "done" for r in self.records.values())

    def _open(self) -> list[int]:
        return [i for i in sorted(self.chosen) if i not in self.records and i not in self.blocked
                and i not in self.running]

    def _start_ready(self) -> None:
        ready = []
        for i in self._open():
            needs = self.nodes[i].needs
            bad = [k for k in needs if k in self.blocked or self.records.get(k, {}).get("status", "done") != "done"]
            if bad and not self.nodes[i].gaps:
                self._block(i, f"needs {self.nodes[bad[0]].name}, which is not done")
            elif len(self.running) + len(ready) < self.executor.jobs and time.time() >= self.waiting.get(i, 0) \
                    and all(k in self.records or k in self.blocked for k in needs):
                job = self._prepare(i)
                ready += [(i, job)] if job else []
        for i, job in ready:
            job.threads = self._threads(self.nodes[i].notebook)
            self._start(i, job)

    def _threads(self, notebook: str) -> int:
        """Cores over the runs of this notebook that may go on together. What else happens to run must not change the sums of a
        training, nor must a quick notebook halve the cores of the long one that it starts with."""
        alike = sum(self.nodes[i].notebook == notebook for i in self.chosen)
        return self.executor.threads(min(self.executor.jobs, alike))

    def _block(self, i: int, reason: str) -> None:
        self.blocked[i] = reason
        self.screen.say(f"{self.nodes[i].name}: not run, {reason}")

    def _prepare(self, i: int) -> Job | None:
        """The job to start, None when the node is settled without: done before, or it cannot be run."""
        node = self.nodes[i]
        missing = {self.nodes[k].name: reason for k in node.needs if (reason := self._not_done(k))}
        inputs = [Path(self.records[k]["directory"]) for k in node.needs if self.nodes[k].name not in missing]
        try:
            job = self.executor.job(node.notebook, node.parameters | ({"missing": missing} if missing else {}), inputs,
                                    node.timeout_s, force=i in self.forced)
        except RunError as error:
            return self._block(i, str(error))
        if i not in self.forced and runs.fault(job.dir) is None:
            self.records[i] = job.record()
            self.waiting.pop(i, None)
            return self.screen.say(f"{node.name}: done before ({minutes(self.records[i]['seconds'])}, {job.run_id})")
        if runs.is_locked(job.dir):
            return self._wait_for_other(i)
        return job

    def _not_done(self, i: int) -> str:
        """Why there is no usable run of a settled node; empty when there is one."""
        if i in self.blocked:
            return f"not run: {self.blocked[i]}"
        record = self.records[i]
        return "" if record["status"] == "done" else f"{record['status']}: {record['reason']}"

    def _wait_for_other(self, i: int) -> None:
        if i not in self.waiting:
            self.screen.say(f"{self.nodes[i].name}: another workbench runs it; waiting for that one")
        self.waiting[i] = time.time() + 2

    def _start(self, i: int, job: Job) -> None:
        problem = runs.fault(job.dir) or "it is forced"
        try:
            job.start()
        except OSError as error:
            return self._block(i, f"could not start: {error}")
        self.running[i], self.begun[i] = job, time.time()
        if i not in self.waiting:
            again = "" if problem == "it was never run" else f"; again, as {problem}"
            self.screen.say(f"{self.nodes[i].name}: started ({job.run_id}{again})")

    def _collect(self) -> None:
        for i, job in list(self.running.items()):
            code = job.poll()
            if code is None:
                continue
            del self.running[i]
            if code == BUSY:
                self._wait_for_other(i)
                continue
            self.waiting.pop(i, None)
            record = self.records[i] = job.record()
            took = minutes(time.time() - self.begun[i])
            if record["status"] == "done":
                self.screen.say(f"{self.nodes[i].name}: done in {took}")
            else:
                self.screen.say(f"{self.nodes[i].name}: {record['status'].upper()} after {took}: {record['reason']}")

    def _line(self, i: int) -> str:
        at = read_json(self.running[i].dir / "progress.json") or {}
        parts = [self.nodes[i].name]
        if at.get("total"):
            parts.append(f"{at['done']}/{at['total']} {at['text']}".strip())
        parts.append(minutes(time.time() - self.begun[i]))
        if at.get("left_s") is not None:
            parts.append(f"about {minutes(at['left_s'])} left")
        return "   ".join(parts)

    def summary(self) -> str:
        """What was not done, why, and where its log is; empty when all is done."""
        lines = []
        for i in sorted(self.chosen):
            record = self.records.get(i)
            if i in self.blocked:
                lines.append(f"  {self.nodes[i].name}: not run, {self.blocked[i]}")
            elif record and record["status"] != "done":
                lines.append(f"  {self.nodes[i].name}: {record['status']}: {record['reason']}")
                lines += [f"      {what:<8} {path}" for what, name in (("notebook", "executed.ipynb"), ("log", "log.txt"))
                          if (path := Path(record["directory"], name)).exists()]
        return "\n".join(lines)


class Screen:
    """Progress on the terminal: lines in place on a tty, else a plain line per notebook every 15 seconds."""

    def __init__(self) -> None:
        self.tty, self.started = sys.stdout.isatty(), time.time()
        self.shown, self.last = 0, time.time()

    def _clear(self) -> None:
        if self.shown:
            sys.stdout.write(f"\x1b[{self.shown}A\x1b[J")
            self.shown = 0

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(f"[{minutes(time.time() - self.started)}] {text}", flush=True)

    def show(self, lines: list[str]) -> None:
        """The state of what runs, when it is time for it again."""
        if time.time() - self.last < (1 if self.tty else 15) or not lines:
            return
        self.last = time.time()
        self._clear()
        if self.tty:
            width = shutil.get_terminal_size().columns - 1
            print("\n".join(f"  {line}"[:width] for line in lines), flush=True)
            self.shown = len(lines)
        else:
            print("\n".join(f"[{minutes(time.time() - self.started)}]   {line}" for line in lines), flush=True)
