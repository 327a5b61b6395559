"""ALFWorld's own games, where `alfworld-download` has put them: $ALFWORLD_DATA/json_2.1.1/{train,valid_seen,valid_unseen}.

As the package itself does, games with movable receptacles, sliced objects or no solution are left out. A family is one of the six
kinds of task, as in SkillRise; "demos" and "train" are alternating games of "train", "dev" is valid_seen, "test" valid_unseen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sagelib.alfworld_text import fingerprint
from sagelib.runs import read_json

ABOUT = "ALFWorld's official games, below $ALFWORLD_DATA."
FOLDERS = {"train": ("demos", "train"), "valid_seen": ("dev",), "valid_unseen": ("test",)}


class OfficialMissing(FileNotFoundError):
    """There are no official games; the text says where they were looked for."""


def root() -> Path | None:
    """The folder of the official games, None when there is none."""
    data = os.environ.get("ALFWORLD_DATA")
    place = Path(data) / "json_2.1.1" if data else None
    return place if place and all((place / folder).is_dir() for folder in FOLDERS) else None


def index(directory: Path) -> Path:
    """``directory`` with tasks.jsonl and world.json of the official games. OfficialMissing when they are not there."""
    place = root()
    if place is None:
        raise OfficialMissing("ALFWorld's official games are not there: $ALFWORLD_DATA must name a folder with json_2.1.1/train, "
                              "valid_seen and valid_unseen (alfworld-download makes one). Or use alfworld-mini.")
    listing = _listing(place)
    if (read_json(directory / "world.json") or {}).get("files") == listing:
        return directory
    rows, counts = [], {}
    for folder, splits in FOLDERS.items():
        for n, (path, game, trajectory) in enumerate(_games(place / folder)):
            split = splits[n % len(splits)]
            counts[split] = counts.get(split, 0) + 1
            rows.append(_row(path, game, trajectory, split, path.parent.relative_to(place).as_posix()))
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    world = {"name": directory.name, "tasks": counts, "games": "official", "view": "full", "files": listing,
             "hash": hashlib.sha256(text.replace(str(place), "").encode()).hexdigest()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tasks.jsonl").write_text(text)
    (directory / "world.json").write_text(json.dumps(world, indent=1) + "\n")
    return directory


def _listing(place: Path) -> str:
    """What the folder holds, without reading it (hundreds of megabytes): names, sizes and times of its games."""
    found = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(place.glob("*/*/*/game.tw-pddl"))]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _games(folder: Path) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """(path, game, trajectory) of the games that the package would play, sorted. ValueError for games of alfworld < 0.4."""
    for path in sorted(folder.glob("*/*/game.tw-pddl")):
        if "movable" in path.as_posix() or "Sliced" in path.as_posix():
            continue
        game = json.loads(path.read_text())
        if not game.get("solvable"):
            continue
        if "move {o} to {r}" not in game["grammar"]:
            raise ValueError(f"{path} is of an older ALFWorld (its grammar has no 'move X to Y'); download the games again with "
                             f"alfworld 0.4")
        yield path, game, json.loads((path.parent / "traj_data.json").read_text())


def _row(path: Path, game: dict[str, Any], trajectory: dict[str, Any], split: str, name: str) -> dict[str, Any]:
    """A line of tasks.jsonl. Difficulty is the length of the recorded walkthrough."""
    attributes = {"split": split, "type": trajectory["task_type"], "object": trajectory["pddl_params"]["object_target"],
                  "scene": trajectory["scene"]["scene_num"], "plan_length": len(game.get("walkthrough") or [])}
    return {"task_id": name, "family": f"{split}/{trajectory['task_type']}", "fingerprint": fingerprint(game),
            "attributes": attributes, "file": str(path)}
