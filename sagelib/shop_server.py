"""A shop's process: opens visits, takes actions, hands out rewards. One JSON object per line, on stdin and stdout.

    {"op": "open", "tasks": [[task_id, copies], ...]}   -> {"groups": [{"task": {...}, "visits": [ids]} ...]}
    {"op": "step", "steps": [[id, action], ...]}        -> {"results": [{"output", "done", "choices", "seconds"} ...]}
    {"op": "judge", "visits": [ids]}                    -> {"outcomes": [reward ...]}   what was bought so far is worth
    {"op": "close", "visits": [ids]}                    -> {}
A request that fails gives {"error": text}. The process ends when stdin closes.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from sagelib.shop_pages import Shop, Visit
from sagelib.shop_world import goal_fingerprint, open_store

STORES_AT_ONCE = 16


class Server:
    """All open visits of one process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        world = json.loads((directory / "world.json").read_text())
        self.seed = world["seed"]   # the world's, never a worker's
        self.view = VIEWS[world.get("view", "full")]
        self.goals: dict[str, dict[str, Any]] = {}
        for line in (directory / "tasks.jsonl").read_text().splitlines():
            task = json.loads(line)
            self.goals[task["task_id"]] = task["goal"]
        self.visits: dict[int, Visit] = {}
        self.ids = itertools.count()
        self.store = functools.lru_cache(STORES_AT_ONCE)(self._store)

    def _store(self, name: str) -> Shop:
        return Shop(open_store(self.directory / "stores" / name, self.seed)[0])

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        groups = []
        for task_id, copies in request["tasks"]:
            if task_id not in self.goals:
                raise KeyError(f"no task {task_id!r}")
            shop, goal = self.store(task_id.split("/")[0]), self.goals[task_id]
            visits = {next(self.ids): Visit(shop, goal) for _ in range(copies)}
            self.visits |= visits
            start = next(iter(visits.values()))
            task = {"task_id": task_id, "instruction": goal["instruction_text"], "start": self.view(start),
                    "fingerprint": goal_fingerprint(goal, shop.products)}   # of what this process has loaded
            groups.append({"task": task, "visits": list(visits)})
        return {"groups": groups}

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        results = []
        for number, action in request["steps"]:
            begun, visit = time.perf_counter(), self.visits[number]
            visit.step(action)
            results.append({"output": self.view(visit), "done": visit.done, "choices": visit.clickables(),
                            "seconds": time.perf_counter() - begun})
        return {"results": results}

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"outcomes": [self.visits[number].reward for number in request["visits"]]}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        for number in request["visits"]:
            self.visits.pop(number, None)
        return {}


OVER = "Thank you for shopping with us!"   # of the receipt only that it is over: it shows the reward


def full(visit: Visit) -> str:
    """The page as WebShop shows it, without the goal, which the prompt holds already."""
    return OVER if visit.done else visit.observation().replace(f"Instruction: [SEP] {visit.goal['instruction_text']} [SEP] ", "")


def short(visit: Visit) -> str:
    """What tells this page from others of its kind, for a small policy; what can be clicked is the same as on the full one."""
    if visit.done:
        return OVER
    if visit.page == "home":
        return "Search"
    if visit.page == "results":
        return "\n".join(["Results:", *(f"{visit.shop.by_asin[asin]['title']} {asin}" for asin in visit.listed())])
    product = visit.shop.by_asin[visit.asin]
    if visit.sub:
        return "\n".join({"Description": [product["description"]], "Features": product["bullets"]}.get(visit.sub, ["none"]))
    return product["title"] + (f"\nchosen: {', '.join(visit.chosen.values())}" if visit.chosen else "")


VIEWS = {"full": full, "short": short}


def main() -> None:
    server = Server(Path(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(server, request["op"])(request)
        except Exception as error:   # the client decides what a failed request means
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
