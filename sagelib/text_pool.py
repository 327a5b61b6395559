"""A text world as a `World`: visits in server processes (`text_server`), behind the protocol that `rollout` and `rise_loop` know.

    with TextPool([sys.executable, "-m", "sagelib.shop_server", "data/shop-mini"], workers=2) as world:
        [group] = world.open([(task_id, 8)])
        results = world.step([(visit, "search[protein bars]") for visit in group])
        outcomes = world.judge(group)          # fraction: the world's reward; success: all of it
        world.close(group)

A process that dies, or does not answer within ``seconds``, makes environment failures of its visits, never failed attempts. It
is started anew at the next `open`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from sagelib.appworld import StepResult
from sagelib.text_worker import ENDED, Worker


@dataclass(frozen=True)
class TextTask:
    """What a solver may know of a task."""

    task_id: str
    instruction: str
    start: str
    fingerprint: str


@dataclass(eq=False)
class TextVisit:
    """One attempt, in the ``life``-th process of a worker.

    ``failure``: why it is an environment failure, "" when it is none. ``choices``: what the world offered after the last step.
    """

    task: TextTask
    worker: int
    life: int
    number: int
    failure: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextOutcome:
    """The world's reward for what was reached, 0 to 1; success is all of it."""

    fraction: float
    success: bool
    failures: tuple[str, ...]
    status: Literal["judged", "env_failure"]


class TextPool:
    """``workers`` processes of one command. ``seconds``: the longest that one request (a batch of tasks or steps) may take."""

    def __init__(self, command: Sequence[str], workers: int = 1, env: Mapping[str, str] | None = None,
                 seconds: float = 600.0) -> None:
        self.workers = [Worker(command, env, seconds) for _ in range(workers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers:
            worker.stop()

    def _ask(self, requests: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """All workers at once. A worker that is gone, or whose request failed, replies {"error": why}."""
        sent = {number: self.workers[number].send(request) for number, request in requests.items()}
        return {number: self.workers[number].reply() if there else {"error": ENDED} for number, there in sent.items()}

    def _open(self, shares: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """As `_ask`, with processes that run: one that dies on the way is started once more and asked again."""
        for number in shares:
            self.workers[number].start()
        replies = self._ask(shares)
        dead = {n: share for n, share in shares.items() if replies[n].get("error") == ENDED}
        for number in dead:
            self.workers[number].stop()
            self.workers[number].start()
        return replies | self._ask(dead)

    def open(self, requests: list[tuple[str, int]]) -> list[list[TextVisit]]:
        """Fresh visits, a group for each request. RuntimeError when the world cannot open a task (there is none, say)."""
        places = {i: i % len(self.workers) for i in range(len(requests))}
        shares = {w: [list(requests[i]) for i in places if places[i] == w] for w in set(places.values())}
        replies = self._open({w: {"op": "open", "tasks": tasks} for w, tasks in shares.items()})
        for reply in replies.values():
            if "error" in reply:
                raise RuntimeError(f"the world could not open its tasks: {reply['error']}")
        queues = {worker: iter(reply["groups"]) for worker, reply in replies.items()}
        groups = []
        for worker in places.values():
            group = next(queues[worker])
            task = TextTask(**group["task"])
            life = self.workers[worker].lives
            groups.append([TextVisit(task, worker, life, number) for number in group["visits"]])
        return groups

    def _alive(self, visit: TextVisit) -> bool:
        """Whether its process still is the one that it was opened in: a new one may use the same numbers."""
        if not visit.failure and visit.life != self.workers[visit.worker].lives:
            visit.failure = ENDED
        return not visit.failure

    def _each(self, visits: Sequence[TextVisit], op: str, field: str, answer: str, items: Sequence[Any]) -> list[Any]:
        """One answer per visit, in order; None for those that failed."""
        rows: dict[int, list[int]] = {}
        for row, visit in enumerate(visits):
            if self._alive(visit):
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

    def step(self, requests: list[tuple[TextVisit, str]]) -> list[StepResult]:
        """What each action led to. An action that means nothing where it is taken changes nothing."""
        visits = [visit for visit, _ in requests]
        answers = self._each(visits, "step", "steps", "results", [[visit.number, action] for visit, action in requests])
        for visit, answer in zip(visits, answers, strict=True):
            visit.choices = tuple(answer["choices"]) if answer else ()
        return [StepResult("", visit.failure, False, "env_failure", False, 0.0) if a is None
                else StepResult(a["output"], None, a["done"], "ok", False, a["seconds"])
                for visit, a in zip(visits, answers, strict=True)]

    def judge(self, visits: list[TextVisit]) -> list[TextOutcome]:
        rewards = self._each(visits, "judge", "visits", "outcomes", [visit.number for visit in visits])
        return [TextOutcome(0.0, False, (visit.failure,), "env_failure") if r is None
                else TextOutcome(r, r == 1.0, () if r == 1.0 else (f"reward {r:.2f}",), "judged")
                for visit, r in zip(visits, rewards, strict=True)]

    def close(self, visits: list[TextVisit]) -> None:
        shares: dict[int, list[int]] = {}
        for visit in visits:
            if self._alive(visit):
                shares.setdefault(visit.worker, []).append(visit.number)
        self._ask({worker: {"op": "close", "visits": numbers} for worker, numbers in shares.items()})
