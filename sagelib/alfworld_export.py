"""Writes generated games as ALFWorld's own folders, for other code that plays them (its AlfredTWEnv). Runs in .venvs/alfworld.

    python -m sagelib.alfworld_export data/alfworld-mini OUT

makes traj_data.json, initial_state.pddl and game.tw-pddl in OUT/json_2.1.1/<split>/<type>-<object>-None-<target>-<scene>/trial_*,
with "demos" and "train" in train, "dev" in valid_seen, "test" in valid_unseen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sagelib.alfworld_houses import TYPES
from sagelib.alfworld_problem import game_data

FOLDERS = {"demos": "train", "train": "train", "dev": "valid_seen", "test": "valid_unseen"}


def trajectory(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of traj_data.json that ALFWorld's text environment and expert read."""
    game, scene, look = row["game"], row["attributes"]["scene"], row["game"]["type"] == "look"
    params = {"object_target": game["object"], "parent_target": "" if look else game["target"],
              "toggle_target": game["target"] if look else "", "mrecep_target": "", "object_sliced": False}
    annotations = [{"task_desc": game["text"], "high_descs": [], "votes": []}]
    return {"images": [], "pddl_params": params, "plan": {}, "scene": {"floor_plan": f"FloorPlan{scene}", "scene_num": scene},
            "task_id": name, "task_type": TYPES[game["type"]], "turk_annotations": {"anns": annotations}, "generated": True}


def export(directory: Path, out: Path) -> int:
    """The number of games written."""
    houses = json.loads((directory / "houses.json").read_text())
    rows = [json.loads(line) for line in (directory / "tasks.jsonl").read_text().splitlines()]
    for row in rows:
        game = row["game"]
        name = "trial_" + row["task_id"].split(".")[0].replace("/", "_")
        kind = f"{TYPES[game['type']]}-{game['object']}-None-{game['target']}-{row['attributes']['scene']}"
        folder = out / "json_2.1.1" / FOLDERS[row["attributes"]["split"]] / kind / name
        folder.mkdir(parents=True, exist_ok=True)
        data = game_data(houses[row["family"]], game | {"walkthrough": row["walkthrough"]})
        (folder / "traj_data.json").write_text(json.dumps(trajectory(row, name), indent=1))
        (folder / "initial_state.pddl").write_text(data["pddl_problem"])
        (folder / "game.tw-pddl").write_text(json.dumps(data))
    return len(rows)


if __name__ == "__main__":
    print(export(Path(sys.argv[1]), Path(sys.argv[2])), "games written")
