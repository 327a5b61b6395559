"""The shop as a `World`: visits in processes of their own, behind the protocol that `rollout` and `rise_loop` know.

    with ShopPool(Path("data/shop-mini")) as world:
        [group] = world.open([(task_id, 8)])
        results = world.step([(visit, "search[protein bars]") for visit in group])
        outcomes = world.judge(group)          # fraction: WebShop's reward; success: the full reward
        world.close(group)
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sagelib import shop_server
from sagelib.appworld import StepResult
from sagelib.runs import ROOT


class ShopMissing(FileNotFoundError):
    """The shop's directory is not built."""


@dataclass(frozen=True)
class ShopTask:
    """What a solver may know of a task."""

    task_id: str
    instruction: str
    start: str
    fingerprint: str


@dataclass(eq=False)
class ShopVisit:
    """One attempt; ``failure`` says why it is an environment failure, empty when it is not one."""

    task: ShopTask
    worker: int
    number: int
    failure: str = ""


@dataclass(frozen=True)
class ShopOutcome:
    """WebShop's reward of what was bought; 0 when nothing was."""

    fraction: float
    success: bool
    failures: tuple[str, ...]
    status: Literal["judged", "env_failure"]


class ShopPool:
    """``workers`` server processes. One that dies makes environment failures of its visits, and is started anew."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        self.directory = Path(directory).resolve()
        if not (self.directory / "world.json").is_file():
            raise ShopMissing(f"no shop in {self.directory} (world.json is missing); build it with sagelib.shop_world.build")
        self.processes: list[subprocess.Popen | None] = [None] * workers

    def __enter__(self) -> ShopPool:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            if process is not None:
                process.stdin.close()
                process.wait(timeout=10)
                process.stdout.close()

    def _process(self, worker: int) -> subprocess.Popen:
        process = self.processes[worker]
        if process is None or process.poll() is not None:
            command = [sys.executable, "-m", shop_server.__name__, str(self.directory)]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.processes[worker] = process
        return process

    def _ask(self, requests: dict[int, dict[str, Any]], start: bool = False) -> dict[int, dict[str, Any]]:
        """All workers at once. A worker that is gone, or whose request failed, replies {"error": why}."""
        sent, replies = {}, {}
        for worker, request in requests.items():
            process = self._process(worker) if start else self.processes[worker]
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                sent[worker] = process
            except (BrokenPipeError, ValueError):
                replies[worker] = {"error": "the shop's process has ended"}
        for worker, process in sent.items():
            line = process.stdout.readline()
            replies[worker] = json.loads(line) if line.endswith("\n") else {"error": "the shop's process has ended"}
        return replies

    def open(self, requests: list[tuple[str, int]]) -> list[list[ShopVisit]]:
        """Fresh visits, a group for each request. RuntimeError when a shop cannot be opened (no such task, say)."""
        places = {i: i % len(self.processes) for i in range(len(requests))}
        shares = {w: [list(requests[i]) for i in places if places[i] == w] for w in set(places.values())}
        replies = self._ask({w: {"op": "open", "tasks": tasks} for w, tasks in shares.items()}, start=True)
        for reply in replies.values():
            if "error" in reply:
                raise RuntimeError(f"the shop could not open its tasks: {reply['error']}")
        queues = {worker: iter(reply["groups"]) for worker, reply in replies.items()}
        groups = []
        for worker in places.values():
            group = next(queues[worker])
            task = ShopTask(**group["task"])
            groups.append([ShopVisit(task, worker, number) for number in group["visits"]])
        return groups

    def _each(self, visits: Sequence[ShopVisit], op: str, field: str, answer: str, items: Sequence[Any]) -> list[Any]:
        """One answer per visit, in order; None for those that failed."""
        rows: dict[int, list[int]] = {}
        for row, visit in enumerate(visits):
            if not visit.failure:
                rows.setdefault(visit.worker, []).append(row)
        replies = self._ask({w: {"op": op, field: [items[row] for row in mine]} for w, mine in rows.items()})
        answers: list[Any] = [None] * len(visits)
        for worker, mine in rows.items():
            for i, row in enumerate(mine):
                if "error" in replies[worker]:
                    visits[row].failure = replies[worker]["error"]
                else:
                    answers[row] = replies[worker][answer][i]
        return answers

    def step(self, requests: list[tuple[ShopVisit, str]]) -> list[StepResult]:
        """What each action led to. An action that means nothing on its page leaves the page as it is."""
        visits = [visit for visit, _ in requests]
        answers = self._each(visits, "step", "steps", "results", [[visit.number, action] for visit, action in requests])
        return [StepResult("", visit.failure, False, "env_failure", False, 0.0) if a is None
                else StepResult(a["output"], None, a["done"], "ok", False, a["seconds"])
                for visit, a in zip(visits, answers, strict=True)]

    def judge(self, visits: list[ShopVisit]) -> list[ShopOutcome]:
        rewards = self._each(visits, "judge", "visits", "outcomes", [visit.number for visit in visits])
        return [ShopOutcome(0.0, False, (visit.failure,), "env_failure") if r is None
                else ShopOutcome(r, r == 1.0, () if r == 1.0 else (f"reward {r:.2f}",), "judged")
                for visit, r in zip(visits, rewards, strict=True)]

    def close(self, visits: list[ShopVisit]) -> None:
        shares: dict[int, list[int]] = {}
        for visit in visits:
            if not visit.failure:
                shares.setdefault(visit.worker, []).append(visit.number)
        self._ask({worker: {"op": "close", "visits": numbers} for worker, numbers in shares.items()})
