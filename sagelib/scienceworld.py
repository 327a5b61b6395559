"""ScienceWorld as a text world: its pool of server processes, and what the notebooks of SkillRise need of it.

The engine (a Java program inside the package) has an environment and processes of its own: nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagelib import java, rise_worlds, scienceworld_exercises, scienceworld_expert, text_files
from sagelib.rise_sequences import TaskCard
from sagelib.runs import ROOT, content_hash
from sagelib.text_pool import TextPool

if TYPE_CHECKING:   # never imported here; named so that a run's id covers what runs at the other end (see `run_ids.sources`)
    from sagelib import scienceworld_server  # noqa: F401

SEED = 7      # of which official training families are for demonstrations
MAKERS = ("scienceworld_tasks", "scienceworld_engine", "scienceworld_expert")   # the code that decides the list of tasks
ABOUT = ("ScienceWorld's real engine and official splits, two of its thirty task types, easy simplifications, rooms in short; "
         "scores are not those of the whole benchmark.")


# What differs from the shop's numbers. Players guess where the document does not say: an experiment is ten turns more.
LOOP: dict[str, Any] = {"max_turns": 6, "max_context": 700, "reply_tokens": 40, "writer_tokens": 90, "document_tokens": 60,
                        "trajectory_tokens": 350}
PANEL = {"per_family": 6, "lengths": [1, 2, 3, 6], "per_length": 6}   # a pair of surfaces has six tasks
SETTINGS = {
    "laptop": {"rise_sft": LOOP | {"hasty": 1.0, "per_family": 6}, "rise_train": LOOP, "rise_evaluate": LOOP | PANEL},
    "smoke": {"rise_sft": {"hasty": 1.0, "max_turns": 5, "reply_tokens": 80}},
}


def python() -> Path:
    """The interpreter of the engine's environment. WorldMissing when it, or Java, is not there."""
    place = text_files.engine_python("scienceworld", "ScienceWorld")
    if why := java.missing(rise_worlds.KINDS["scienceworld"].java):
        raise text_files.WorldMissing(f"ScienceWorld cannot start: {why}")
    return place


def environment() -> dict[str, str]:
    """Of the engine's processes: nothing that lets another python's packages or another Java's options in."""
    drop = ("PYTHONHOME", "VIRTUAL_ENV", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")
    return {k: v for k, v in os.environ.items() if k not in drop} | {"PYTHONPATH": str(ROOT), "PYTHONNOUSERSITE": "1"}


class ScienceWorldPool(TextPool):
    """``workers`` processes with a Java process each (1 GB at most), for the tasks listed in one directory."""

    def __init__(self, directory: Path, workers: int = 2, seconds: float = 600.0) -> None:
        directory = text_files.made(directory, "sagelib.scienceworld.ensure")
        super().__init__([str(python()), "-m", "sagelib.scienceworld_server", str(directory)], workers, environment(), seconds)


def version() -> str:
    """What the list of a directory was made by; another one makes `ensure` build again."""
    return text_files.version(MAKERS)


def build(directory: Path, name: str, view: str = "short") -> dict[str, int]:
    """Writes tasks.jsonl and, last, world.json with its hash; returns the tasks of each split. RuntimeError: why it failed."""
    directory.mkdir(parents=True)
    command = [str(python()), "-m", "sagelib.scienceworld_tasks", name.removeprefix("scienceworld-"), str(directory), str(SEED)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"making {name} failed (exit {done.returncode}):\n{(done.stdout + done.stderr)[-2000:]}")
    (directory / "build.txt").write_text(done.stdout)
    counts = Counter(row["split"] for row in rows(directory))
    world = {"name": name, "seed": SEED, "tasks": counts, "view": view, "version": version(), "about": ABOUT,
             "hash": content_hash(directory / "tasks.jsonl")}
    (directory / "world.json").write_text(json.dumps(world, indent=1) + "\n")
    return counts


def ensure(name: str) -> Path:
    """data/<name>, made if it is not there or was made by other code (mini takes minutes)."""
    return text_files.ensure(name, version(), lambda fresh: build(fresh, name), python)


def rows(directory: Path) -> list[dict[str, Any]]:
    """The list of tasks: {task_id, family, split, instruction, plan, answer, fingerprint}."""
    return [json.loads(line) for line in (Path(directory) / "tasks.jsonl").read_text().splitlines()]


def cards(directory: Path, split: str) -> list[TaskCard]:
    """The tasks of a split, as `rise_sequences.build` takes them. Their difficulty is the length of the shortest plan known."""
    return [TaskCard(row["task_id"], row["family"], row["fingerprint"], {"split": split, "plan_length": len(row["plan"])})
            for row in rows(directory) if row["split"] == split]


def world(name: str) -> rise_worlds.TextWorld:
    """The ScienceWorld of this name, for the notebooks."""
    return rise_worlds.TextWorld(
        name=name, directory=partial(ensure, name), cards=cards, pool=ScienceWorldPool, reply_to=scienceworld_expert.reply_to,
        copying_pairs=scienceworld_exercises.copying_pairs, plan={"difficulty": "plan_length", "order": "strata"},
        about=ABOUT, settings=SETTINGS,
    )
