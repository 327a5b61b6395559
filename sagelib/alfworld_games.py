"""Makes a generated ALFWorld: houses, tasks, and each task won once in the engine. Runs in .venvs/alfworld.

    python -m sagelib.alfworld_games OUT '{"name": ..., "seed": 7, "version": ..., "plan": {"demos": [houses, tasks], ...}}' JOBS

The splits have different floor plans: "test" those of the package's own test split, the others disjoint parts of the rest. A task
is written only after a script with full knowledge (`script`) has won it: each command accepted, nothing won before the last.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sagelib.alfworld_engine import Engines, Game
from sagelib.alfworld_houses import STATIONS, choose_tasks, kind_of, make_house, scenes
from sagelib.alfworld_problem import game_data, mangle, objects_of
from sagelib.alfworld_text import fingerprint

LEAST_PLACES = 8   # of a house: with fewer, looking everywhere is no effort


def script(house: dict[str, Any], task: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Commands that win, with full knowledge and no detour. ``names``: id -> what the engine calls it."""
    commands, opened = [], set()

    def go(place: str, inside: bool = True) -> None:
        commands.append(f"go to {names[place]}")
        if inside and place in house["openable"] and place not in opened:
            opened.add(place)
            commands.append(f"open {names[place]}")

    home = house["homes"][task["object"]]
    things = sorted(o for o, (kind, _) in objects_of(house, task).items() if kind == task["object"])
    if task["type"] == "look":
        lamp = next(o for o, (kind, _) in objects_of(house, task).items() if kind == "DeskLamp")
        go(home)
        commands.append(f"take {names[things[0]]} from {names[home]}")
        if house["lamp"] != home:
            go(house["lamp"])
        return [*commands, f"use {names[lamp]}"]
    target = next(r for r in house["receptacles"] if kind_of(r) == task["target"])
    for thing in things[: 2 if task["type"] == "two" else 1]:
        go(home)
        commands.append(f"take {names[thing]} from {names[home]}")
        if task["type"] in STATIONS:
            station = next(r for r in house["receptacles"] if kind_of(r) == STATIONS[task["type"]][1])
            if station != home:
                go(station, inside=False)
            commands.append(f"{task['type']} {names[thing]} with {names[station]}")
        go(target)
        commands.append(f"move {names[thing]} to {names[target]}")
    return commands


def names_of(house: dict[str, Any], task: dict[str, Any], game: Game) -> dict[str, str]:
    """id -> the engine's name, of every receptacle and object."""
    return {i: game.entities[mangle(i).lower()].name.strip() for i in [*house["receptacles"], *objects_of(house, task)]}


def checked(house: dict[str, Any], task: dict[str, Any], engines: Engines) -> dict[str, Any]:
    """The task with its walkthrough and depth, won in the engine. RuntimeError when the engine does not agree."""
    game = Game(game_data(house, task))
    play = engines.start(game)
    names = names_of(house, task, game)
    commands, listed = script(house, task, names), play.intro.partition("you see ")[2]
    for i, command in enumerate(commands):
        if play.won or command not in play.commands:
            raise RuntimeError(f"command {i} of {commands} for {task} in scene {house['scene']}: "
                               f"{'already won' if play.won else f'not one of {play.commands}'}")
        play.step(command)
    if not play.won:
        raise RuntimeError(f"{commands} does not win {task} in scene {house['scene']}")
    engines.end(play)
    places = sorted(house["receptacles"], key=lambda r: listed.index(f"a {names[r]}"))
    homes = [house["homes"][task["object"]]] + ([house["lamp"]] if task["type"] == "look" else [])
    return task | {"walkthrough": commands, "depth": max(places.index(home) for home in homes)}


def make_family(scene: int, name: str, seed: int, count: int) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """A house and its tasks; None when the floor plan has not enough in it."""
    rng = random.Random(f"{seed} {name} {scene}")
    house = make_house(scene, rng)
    tasks = choose_tasks(house, count, rng) if len(house["receptacles"]) >= LEAST_PLACES else None
    if tasks is None:
        return None
    engines = Engines()
    return house, [checked(house, task, engines) for task in tasks]


def families(plan: dict[str, list[int]], seed: int) -> Iterator[tuple[str, int, list[tuple[int, str, int, int]]]]:
    """For each split its name, how many houses it wants, and calls of `make_family` in order of preference: more than wanted."""
    own = scenes(held_out=False)
    random.Random(f"{seed} scenes").shuffle(own)
    parts, total = {"test": scenes(held_out=True)}, sum(houses for split, (houses, _) in plan.items() if split != "test")
    shares = {split: max(4, len(own) * houses // total) for split, (houses, _) in plan.items() if split != "test"}
    for split, share in shares.items():   # houses may share a floor plan, with other homes in it; splits may not
        parts[split], own = own[:share], own[share:]
    for split, (houses, count) in plan.items():
        calls = [(parts[split][n % len(parts[split])], f"{split}{n}", seed, count) for n in range(3 * houses + 8)]
        yield split, houses, calls


def make(out: Path, asked: dict[str, Any], jobs: int) -> None:
    """Writes houses.json, tasks.jsonl and, last, world.json. Equal requests write equal bytes. RuntimeError: too few houses."""
    houses, tasks, counts = {}, [], {}
    with ProcessPoolExecutor(jobs) as pool:
        for split, wanted, calls in families(asked["plan"], asked["seed"]):
            made = []
            for start in range(0, len(calls), wanted):
                made += [pair for pair in pool.map(make_family, *zip(*calls[start : start + wanted], strict=True)) if pair]
                if len(made) >= wanted:
                    break
            else:
                raise RuntimeError(f"only {len(made)} of the {wanted} houses of {split} have enough to do in them")
            for n, (house, own) in enumerate(made[:wanted]):
                name = f"{split}{n}"
                houses[name] = house
                tasks += [_row(name, split, i, house, task) for i, task in enumerate(own)]
            counts[split] = sum(len(own) for _, own in made[:wanted])
            print(f"{split}: {wanted} houses, {counts[split]} tasks, each won in the engine", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "houses.json").write_text(json.dumps(houses, indent=1, sort_keys=True) + "\n")
    (out / "tasks.jsonl").write_text("".join(json.dumps(task, sort_keys=True) + "\n" for task in tasks))
    packages = {name: version(name) for name in ("alfworld", "textworld", "fast-downward-textworld")}
    world = {key: asked[key] for key in ("name", "seed", "version")} | {
        "tasks": counts, "games": "generated", "view": "short", "packages": packages, "hash": fingerprints(tasks)}
    (out / "world.json").write_text(json.dumps(world, indent=1) + "\n")


def fingerprints(tasks: list[dict[str, Any]]) -> str:
    """One hash of all tasks: each fingerprint covers rules, wording, start state and goal."""
    text = json.dumps([[task["task_id"], task["fingerprint"], task["attributes"]] for task in tasks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _row(name: str, split: str, number: int, house: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """A line of tasks.jsonl: a card (as `rise_sequences.TaskCard`), the task, and the commands that won it."""
    kind = f"{task['type']}.{task['object'].lower()}.{task['target'].lower()}"
    attributes = {"split": split, "type": task["type"], "object": task["object"], "scene": house["scene"],
                  "plan_length": len(task["walkthrough"]), "search_depth": task["depth"]}
    game = {key: task[key] for key in ("type", "object", "target", "text", "counts")}
    return {"task_id": f"{name}/{number}.{kind}", "family": name, "fingerprint": fingerprint(game_data(house, game)),
            "attributes": attributes, "game": game, "walkthrough": task["walkthrough"]}


if __name__ == "__main__":
    make(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
