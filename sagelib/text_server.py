"""The process behind a `text_pool`: opens visits, takes actions, hands out rewards. One JSON object per line, stdin and stdout.

    {"op": "open", "tasks": [[task_id, copies], ...]}   -> {"groups": [{"task": {...}, "visits": [ids]} ...]}
    {"op": "step", "steps": [[id, action], ...]}        -> {"results": [{"output", "done", "choices", "seconds"} ...]}
    {"op": "judge", "visits": [ids]}                    -> {"outcomes": [reward ...]}   what was reached so far is worth, 0 to 1
    {"op": "close", "visits": [ids]}                    -> {}
A task is {"task_id", "instruction", "start", "fingerprint"}. A request that fails gives {"error": text}. The process ends when
stdin closes. Standard library only: a world's server may run in an environment of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any, Protocol


class Visit(Protocol):
    """One attempt at a task, as a world has it."""

    done: bool
    reward: float

    def look(self) -> str:
        """What is to be seen now."""

    def step(self, action: str) -> None: ...

    def choices(self) -> list[str]:
        """What can be done now, as far as the world says."""


class TextServer:
    """All open visits of one process. A world adds `begin`."""

    def __init__(self) -> None:
        self.visits: dict[int, Visit] = {}
        self.ids = itertools.count()

    def begin(self, task_id: str, copies: int) -> tuple[dict[str, str], list[Visit]]:
        """The task, and ``copies`` fresh visits of it. KeyError when there is no such task."""
        raise NotImplementedError

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        groups = []
        for task_id, copies in request["tasks"]:
            task, visits = self.begin(task_id, copies)
            numbered = {next(self.ids): visit for visit in visits}
            self.visits |= numbered
            groups.append({"task": task, "visits": list(numbered)})
        return {"groups": groups}

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        results = []
        for number, action in request["steps"]:
            begun, visit = time.perf_counter(), self.visits[number]
            visit.step(action)
            results.append({"output": visit.look(), "done": visit.done, "choices": visit.choices(),
                            "seconds": time.perf_counter() - begun})
        return {"results": results}

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"outcomes": [self.visits[number].reward for number in request["visits"]]}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        for number in request["visits"]:
            self.visits.pop(number, None)
        return {}

    def serve(self) -> None:
        """Until stdin closes. What an engine prints goes to stderr: stdout belongs to the replies."""
        replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                reply = getattr(self, request["op"])(request)
            except Exception as error:   # the client decides what a failed request means
                reply = {"error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
