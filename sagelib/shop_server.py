"""A shop's process (see `text_server` for what it speaks)."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from sagelib.shop_pages import Shop, Visit
from sagelib.shop_world import goal_fingerprint, open_store
from sagelib.text_server import TextServer

STORES_AT_ONCE = 16


class ShopServer(TextServer):
    """The stores of one shop, opened as they are needed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        world = json.loads((directory / "world.json").read_text())
        self.seed = world["seed"]   # the world's, never a worker's
        self.view = VIEWS[world.get("view", "full")]
        self.goals: dict[str, dict[str, Any]] = {}
        for line in (directory / "tasks.jsonl").read_text().splitlines():
            task = json.loads(line)
            self.goals[task["task_id"]] = task["goal"]
        self.store = functools.lru_cache(STORES_AT_ONCE)(self._store)

    def _store(self, name: str) -> Shop:
        return Shop(open_store(self.directory / "stores" / name, self.seed)[0])

    def begin(self, task_id: str, copies: int) -> tuple[dict[str, str], list[ShopVisit]]:
        if task_id not in self.goals:
            raise KeyError(f"no task {task_id!r}")
        shop, goal = self.store(task_id.split("/")[0]), self.goals[task_id]
        visits = [ShopVisit(Visit(shop, goal), self.view) for _ in range(copies)]
        task = {"task_id": task_id, "instruction": goal["instruction_text"], "start": visits[0].look(),
                "fingerprint": goal_fingerprint(goal, shop.products)}   # of what this process has loaded
        return task, visits


class ShopVisit:
    """A visit as `text_server` has it."""

    def __init__(self, pages: Visit, view: Any) -> None:
        self.pages, self.view, self.step = pages, view, pages.step

    def choices(self) -> list[str]:
        return [f"click[{name}]" for name in self.pages.clickables()]

    def look(self) -> str:
        return self.view(self.pages)

    @property
    def done(self) -> bool:
        return self.pages.done

    @property
    def reward(self) -> float:
        return self.pages.reward


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


if __name__ == "__main__":
    ShopServer(Path(sys.argv[1])).serve()
