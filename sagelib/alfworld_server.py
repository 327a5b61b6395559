"""ALFWorld's process (see `text_server` for what it speaks). Runs in .venvs/alfworld."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from sagelib.alfworld_engine import Engines, Game, Play, read_game
from sagelib.alfworld_problem import game_data
from sagelib.alfworld_text import INTRO, VIEWS, fingerprint
from sagelib.text_server import TextServer

GAMES_AT_ONCE = 48


class AlfworldServer(TextServer):
    """The games of one directory, made or read as they are needed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.world = json.loads((directory / "world.json").read_text())
        self.tasks = {task["task_id"]: task for task in map(json.loads, (directory / "tasks.jsonl").read_text().splitlines())}
        houses = directory / "houses.json"
        self.houses = json.loads(houses.read_text()) if houses.exists() else {}
        self.view = VIEWS[self.world["view"]]
        self.engines = Engines()
        self.game = functools.lru_cache(GAMES_AT_ONCE)(self._game)

    def _game(self, task_id: str) -> Game:
        task = self.tasks[task_id]
        return read_game(Path(task["file"])) if "file" in task else Game(game_data(self.houses[task["family"]], task["game"]))

    def begin(self, task_id: str, copies: int) -> tuple[dict[str, str], list[AlfworldVisit]]:
        if task_id not in self.tasks:
            raise KeyError(f"no task {task_id!r}")
        game = self.game(task_id)
        visits = [AlfworldVisit(self.engines.start(game), self.view) for _ in range(copies)]
        start, goal = INTRO.search(visits[0].play.intro).groups()
        task = {"task_id": task_id, "instruction": goal, "start": self.view(start), "fingerprint": fingerprint(game.data)}
        return task, visits

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        for number in request["visits"]:
            if number in self.visits:
                self.engines.end(self.visits[number].play)
        return super().close(request)


class AlfworldVisit:
    """A play as `text_server` has it. Once won it stays won: nothing is taken any more."""

    def __init__(self, play: Play, view: Any) -> None:
        self.play, self.view, self.done = play, view, False

    def step(self, action: str) -> None:
        if not self.done:
            self.play.step(" ".join(action.lower().split()))
            self.done = self.play.won

    def look(self) -> str:
        return self.view(self.play.text)

    def choices(self) -> list[str]:
        return self.play.commands

    @property
    def reward(self) -> float:
        """ALFWorld knows success only."""
        return float(self.done)


if __name__ == "__main__":
    AlfworldServer(Path(sys.argv[1])).serve()
