"""ALFWorld's text engine as a text world: its pool of server processes, and what the notebooks of SkillRise need of it.

    alfworld-mini, alfworld-smoke   games generated here with the package's domain, grammar and floor plans (`alfworld_games`)
    alfworld-official               the games that alfworld-download puts below $ALFWORLD_DATA (`alfworld_official`)

The engine has an environment of its own, .venvs/alfworld: nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagelib import alfworld_exercises, alfworld_expert, alfworld_official, rise_worlds, text_files
from sagelib.rise_sequences import TaskCard
from sagelib.runs import ROOT
from sagelib.text_pool import TextPool

if TYPE_CHECKING:   # never imported here; named so that the world's hash covers what runs at the other end (`run_ids.sources`)
    from sagelib import alfworld_server  # noqa: F401

MAKERS = ("alfworld_games", "alfworld_houses", "alfworld_problem")   # the code that decides the games
SEED = 10   # with it the few games of alfworld-smoke are of all kinds
# split -> (houses, tasks of each)
PLANS = {"mini": {"demos": (32, 9), "train": (20, 12), "dev": (4, 6), "test": (16, 12)},
         "smoke": {"demos": (4, 3), "train": (4, 3), "dev": (2, 3), "test": (4, 3)}}
GENERATED = ("Houses generated here with ALFWorld's own domain, grammar and floor plans, in its real engine; "
             "scores are not ALFWorld scores.")


# What differs from the shop's numbers. A row of a trial holds a list of up to 20 places, and up to 14 turns of 30 tokens.
LOOP: dict[str, Any] = {"max_turns": 14, "max_context": 1100, "reply_tokens": 32, "writer_tokens": 180, "document_tokens": 140,
                        "trajectory_tokens": 650}
SETTINGS = {
    "laptop": {"rise_sft": LOOP, "rise_train": LOOP, "rise_evaluate": LOOP},
    # the smoke profile's tokenizer knows 400 words: the same texts are longer in it
    "smoke": {"rise_sft": {"max_turns": 14, "max_context": 2000, "reply_tokens": 64, "writer_tokens": 480, "document_tokens": 440,
                           "trajectory_tokens": 1200}},
}


def python() -> Path:
    """The interpreter of the engine's environment. WorldMissing when it is not built."""
    return text_files.engine_python("alfworld", "ALFWorld")


def environment() -> dict[str, str]:
    """Of the engine's processes. Importing alfworld makes the directory $ALFWORLD_DATA: without one it stays below .venvs."""
    data = os.environ.get("ALFWORLD_DATA") or str(python().parent.parent / "alfworld-data")
    own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "ALFWORLD_DATA": data}
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")} | own


class AlfworldPool(TextPool):
    """``workers`` engines of one directory of games."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        directory = text_files.made(directory, "sagelib.alfworld.ensure")
        super().__init__([str(python()), "-m", "sagelib.alfworld_server", str(directory)], workers, environment())


def version() -> str:
    """What the games of a directory were made by; another one makes `ensure` build again."""
    return text_files.version(MAKERS)


def build(directory: Path, name: str, plan: dict[str, Any], seed: int = SEED) -> None:
    """Makes the games in a directory. RuntimeError with the end of the generator's words when it fails."""
    asked = json.dumps({"name": name, "seed": seed, "version": version(), "plan": plan})
    command = [str(python()), "-m", "sagelib.alfworld_games", str(directory), asked, str(os.cpu_count() or 1)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"making {name} failed (exit {done.returncode}):\n{done.stderr[-2000:]}")


def ensure(name: str) -> Path:
    """data/<name>, made if it is not there or was made by other code (mini takes minutes)."""
    size = name.removeprefix("alfworld-")
    if size == "official":
        return alfworld_official.index(ROOT / "data" / name)
    return text_files.ensure(name, version(), lambda fresh: build(fresh, name, PLANS[size]), python)


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
