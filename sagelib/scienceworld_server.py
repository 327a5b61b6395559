"""A ScienceWorld process (see `text_server` for what it speaks): one Java process, many games. Runs in .venvs/scienceworld."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from sagelib.scienceworld_engine import Engine, EngineDied, Game, fingerprint
from sagelib.scienceworld_view import VIEWS
from sagelib.text_server import TextServer


class ScienceServer(TextServer):
    """The tasks of one directory. When the Java process is gone this one ends, too: the pool starts another."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.view = VIEWS[json.loads((directory / "world.json").read_text())["view"]]
        rows = [json.loads(line) for line in (directory / "tasks.jsonl").read_text().splitlines()]
        self.tasks = {row["task_id"] for row in rows}
        self.engine = Engine()

    def begin(self, task_id: str, copies: int) -> tuple[dict[str, str], list[ScienceVisit]]:
        if task_id not in self.tasks:
            raise KeyError(f"no task {task_id!r}")
        games: list[Game] = []
        try:
            for _ in range(copies):
                games.append(Game(self.engine, *place(task_id)))
        except ValueError:
            for game in games:
                game.close()
            raise
        first = games[0]
        task = {"task_id": task_id, "instruction": first.instruction, "start": self.view(first.start),
                "fingerprint": fingerprint(first.task, first.variation, first.instruction, first.start)}
        return task, [ScienceVisit(game, self.view) for game in games]

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        for number in request["visits"]:
            if number in self.visits:
                self.visits.pop(number).game.close()
        return {}

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._or_end(super().open, request)

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._or_end(super().step, request)

    @staticmethod
    def _or_end(method: Any, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return method(request)
        except EngineDied as error:
            print(f"ScienceWorld's Java process is gone: {error}", file=sys.stderr, flush=True)
            os._exit(3)


class ScienceVisit:
    """A visit as `text_server` has it. Valid actions are not listed: there are thousands, and finding them is slow."""

    def __init__(self, game: Game, view: Any) -> None:
        self.game, self.view, self.step = game, view, game.step

    def look(self) -> str:
        return self.view(self.game.shown)

    def choices(self) -> list[str]:
        return []

    @property
    def done(self) -> bool:
        return self.game.done

    @property
    def reward(self) -> float:
        """The package's score, 0 to 1; after a wrong answer (-1 there) it is 0."""
        return max(0.0, self.game.score)


def place(task_id: str) -> tuple[str, int]:
    """("find-plant", 3) of "find-plant/3"."""
    task, _, variation = task_id.rpartition("/")
    return task, int(variation)


if __name__ == "__main__":
    ScienceServer(Path(sys.argv[1])).serve()
