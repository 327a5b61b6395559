"""ALFWorld's text engine as a text world: its pool of server processes, and what the notebooks of SkillRise need of it.

    alfworld-mini, alfworld-smoke   games generated here with the package's domain, grammar and floor plans (`alfworld_games`)
    alfworld-official               the games that alfworld-download puts below $ALFWORLD_DATA (`alfworld_official`)

The engine has an environment of its own, .venvs/alfworld: nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from sagelib import alfworld_exercises, alfworld_expert, alfworld_official, rise_worlds
from sagelib.rise_sequences import TaskCard
from sagelib.runs import ROOT, read_json
from sagelib.text_pool import TextPool

VERSION = 1   # of what `alfworld_games` writes; another number makes `ensure` build again
# split -> (houses, tasks of each)
PLANS = {"mini": {"demos": (32, 9), "train": (20, 12), "dev": (4, 6), "test": (16, 12)},
         "smoke": {"demos": (4, 3), "train": (4, 3), "dev": (2, 3), "test": (4, 3)}}
GENERATED = ("Houses generated here with ALFWorld's own domain, grammar and floor plans, in its real engine; "
             "scores are not ALFWorld scores.")


class AlfworldMissing(FileNotFoundError):
    """The engine's environment, or the games, are not there; the text says what makes them."""


def python() -> Path:
    """The interpreter of the engine's environment. AlfworldMissing when it is not built."""
    place = Path(os.environ.get("SAGELIB_ALFWORLD_PYTHON") or ROOT / ".venvs" / "alfworld" / "bin" / "python")
    if not place.exists():
        raise AlfworldMissing(f"ALFWorld's environment is not built (no {place}). Fix: ./workbench setup --world alfworld")
    return place


def environment() -> dict[str, str]:
    """Of the engine's processes. Importing alfworld makes the directory $ALFWORLD_DATA: without one it stays below .venvs."""
    data = os.environ.get("ALFWORLD_DATA") or str(python().parent.parent / "alfworld-data")
    own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "ALFWORLD_DATA": data}
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")} | own


class AlfworldPool(TextPool):
    """``workers`` engines of one directory of games."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        directory = Path(directory).resolve()
        if not (directory / "world.json").is_file():
            raise AlfworldMissing(f"no games in {directory} (world.json is missing); make them with sagelib.alfworld.ensure")
        super().__init__([str(python()), "-m", "sagelib.alfworld_server", str(directory)], workers, environment())


def build(directory: Path, name: str, plan: dict[str, Any], seed: int = 7) -> None:
    """Makes the games in a directory. RuntimeError with the end of the generator's words when it fails."""
    asked = json.dumps({"name": name, "seed": seed, "version": VERSION, "plan": plan})
    command = [str(python()), "-m", "sagelib.alfworld_games", str(directory), asked, str(os.cpu_count() or 1)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"making {name} failed (exit {done.returncode}):\n{done.stderr[-2000:]}")


def ensure(name: str) -> Path:
    """data/<name>, made if it is not there or of another version (mini takes minutes)."""
    directory, size = ROOT / "data" / name, name.removeprefix("alfworld-")
    if size == "official":
        return alfworld_official.index(directory)
    if (read_json(directory / "world.json") or {}).get("version") != VERSION:
        python()   # says what is missing before anything is removed
        fresh = directory.with_name(f".{name}.{os.getpid()}")
        try:
            build(fresh, name, PLANS[size])
            shutil.rmtree(directory, ignore_errors=True)
            fresh.replace(directory)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return directory


def cards(directory: Path, split: str) -> list[TaskCard]:
    """The tasks of a split, as `rise_sequences.build` takes them."""
    rows = [json.loads(line) for line in (Path(directory) / "tasks.jsonl").read_text().splitlines()]
    return [TaskCard(row["task_id"], row["family"], row["fingerprint"], row["attributes"])
            for row in rows if row["attributes"]["split"] == split]


def world(name: str) -> rise_worlds.TextWorld:
    """The ALFWorld of this name, for the notebooks."""
    return rise_worlds.TextWorld(
        name=name, directory=partial(ensure, name), cards=cards, pool=AlfworldPool, reply_to=alfworld_expert.reply_to,
        copying_pairs=alfworld_exercises.copying_pairs,
        plan={"difficulty": "plan_length", "order": "strata", "distinct": "object"},
        about=alfworld_official.ABOUT if name == "alfworld-official" else GENERATED, settings=SETTINGS,
    )


LOOP: dict[str, Any] = {"max_turns": 14, "max_context": 1000, "reply_tokens": 32, "writer_tokens": 140, "document_tokens": 110,
                        "trajectory_tokens": 600}
SETTINGS = {
    "laptop": {"rise_sft": LOOP, "rise_train": LOOP, "rise_evaluate": LOOP},
    "smoke": {},
}
