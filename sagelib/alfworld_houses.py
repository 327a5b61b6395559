"""Houses and tasks of the generated ALFWorld: real floor plans, each kind of object kept at one place. Runs in .venvs/alfworld.

From the package: the 120 floor plans (which kinds of objects and receptacles are there, where one stands before them), what may
lie where, what can be heated, cooled or cleaned, the goals and their wording. Made here: which of a room's receptacles are used
(at most `MOST` of a kind), which kinds of objects it has, and the *home* of each kind, drawn anew for each house. All objects of
a kind are at its home, in every task of the house: what was seen in one task says where to look in the next.

A house is a family. Its tasks differ in what is asked for, and in how many objects of each kind there are.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import alfworld.gen
from alfworld.gen import constants, goal_library

LAYOUTS = Path(next(iter(alfworld.gen.__path__))) / "layouts"
# Receptacles that hold one kind of thing (a towel holder, a toaster) would only lengthen the list.
FURNITURE = {"ArmChair", "BathtubBasin", "Bed", "Cabinet", "Cart", "CoffeeTable", "CounterTop", "Desk", "DiningTable", "Drawer",
             "Dresser", "Fridge", "GarbageCan", "Microwave", "Ottoman", "Safe", "Shelf", "SideTable", "SinkBasin", "Sofa",
             "Toilet"}
ONE = {"Fridge", "Microwave", "SinkBasin", "BathtubBasin", "Toilet", "GarbageCan"}
MOST, KINDS, KINDS_AT_ONE_PLACE = 3, 8, 2
LAMP_STANDS = {"Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable"}
FIXED = {"Bathtub", "Blinds", "Boots", "Chair", "Curtains", "DeskLamp", "Faucet", "FloorLamp", "Footstool", "HousePlant", "Lamp",
         "LaundryHamperLid", "LightSwitch", "Mirror", "Painting", "Plunger", "Poster", "ScrubBrush", "ShowerDoor", "ShowerGlass",
         "Sink", "StoveKnob", "Television", "Window"}
STATIONS = {"clean": ("Cleanable", "SinkBasin"), "heat": ("Heatable", "Microwave"), "cool": ("Coolable", "Fridge")}
TYPES = {"pick": "pick_and_place_simple", "clean": "pick_clean_then_place_in_recep", "heat": "pick_heat_then_place_in_recep",
         "cool": "pick_cool_then_place_in_recep", "two": "pick_two_obj_and_place", "look": "look_at_obj_in_light"}


def kind_of(receptacle: str) -> str:
    """"SinkBasin" for "Sink|+01.00|+00.90|-01.00|SinkBasin"."""
    parts = receptacle.split("|")
    return parts[4] if len(parts) > 4 else parts[0]


def scenes(held_out: bool) -> list[int]:
    """Numbers of the floor plans, those of the package's test split or the others."""
    return list(constants.TEST_SCENE_NUMBERS if held_out else constants.TRAIN_SCENE_NUMBERS)


def make_house(scene: int, rng: random.Random) -> dict[str, Any]:
    """{scene, start, receptacles: {id: location}, openable: [ids], homes: {kind: id}, lamp: id or None}."""
    points = json.loads((LAYOUTS / f"FloorPlan{scene}-openable.json").read_text())
    types = json.loads((LAYOUTS / f"FloorPlan{scene}-objects.json").read_text())
    found: dict[str, list[str]] = {}
    for name in sorted(points):
        if kind_of(name) in FURNITURE:
            found.setdefault(kind_of(name), []).append(name)
    receptacles, taken = {}, set()
    for kind, names in found.items():
        for name in rng.sample(names, min(len(names), 1 if kind in ONE else MOST)):
            receptacles[name] = _location(points[name], taken)
    house = {"scene": scene, "start": _location([0.0, 0.0, 0, 30], taken), "receptacles": dict(sorted(receptacles.items())),
             "openable": [name for name in sorted(receptacles) if kind_of(name) in constants.OPENABLE_CLASS_SET]}
    stands = [name for name in house["receptacles"] if kind_of(name) in LAMP_STANDS]
    house["lamp"] = rng.choice(stands) if "DeskLamp" in types and stands else None
    return house | {"homes": _homes(house, types, rng)}


def _location(point: list[float], taken: set[str]) -> str:
    """ALFWorld's name of a place to stand. Two receptacles never share one: the engine offers no way from it to itself."""
    x, z, turn, tilt = round(point[0] * 4), round(point[1] * 4), int(point[2]) // 90 % 4, int(point[3])
    while (name := f"loc|{x}|{z}|{turn}|{tilt}") in taken:
        tilt += 15
    taken.add(name)
    return name


def _homes(house: dict[str, Any], types: list[str], rng: random.Random) -> dict[str, str]:
    """A receptacle for each of `KINDS` kinds of objects (or for as many as the room has)."""
    homes: dict[str, str] = {}
    kinds = sorted(t for t in types if t in constants.OBJECTS_SET - constants.RECEPTACLES - FIXED
                   or t in constants.MOVABLE_RECEPTACLES_SET)
    for kind in rng.sample(kinds, len(kinds)):
        held = list(homes.values())
        room = [name for name in house["receptacles"] if _holds(name, kind) and held.count(name) < KINDS_AT_ONE_PLACE]
        if room and len(homes) < KINDS:
            homes[kind] = rng.choice(room)
    return dict(sorted(homes.items()))


def _holds(receptacle: str, kind: str) -> bool:
    return kind in constants.VAL_RECEPTACLE_OBJECTS.get(kind_of(receptacle), ())


def possible(house: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """type -> the (object kind, target) that the house allows; the goal never holds at the start, for the target is not the home.

    For "look" the target is the lamp.
    """
    kinds = {kind_of(name) for name in house["receptacles"]}
    goals: dict[str, list[tuple[str, str]]] = {}
    for name in TYPES:
        room = next(room for room, numbers in constants.SCENE_TYPE.items() if house["scene"] in numbers)
        if room not in constants.GOALS_VALID[TYPES[name]]:
            continue
        prop, station = STATIONS.get(name, (None, None))
        able = [k for k in house["homes"] if prop is None or k in constants.VAL_ACTION_OBJECTS[prop]]
        if name == "look":
            goals[name] = [(k, "DeskLamp") for k in able] if house["lamp"] else []
        elif station is None or station in kinds:
            goals[name] = [(k, r) for k in able for r in sorted(kinds - {kind_of(house["homes"][k]), station})
                           if k in constants.VAL_RECEPTACLE_OBJECTS.get(r, ())]
    return {name: pairs for name, pairs in goals.items() if pairs}


def choose_tasks(house: dict[str, Any], count: int, rng: random.Random) -> list[dict[str, Any]] | None:
    """``count`` tasks {type, object, target, text, counts}, of all types in turn, objects as evenly as can be; None: too few."""
    goals = {name: rng.sample(pairs, len(pairs)) for name, pairs in possible(house).items()}
    order, tasks, used = rng.sample(sorted(goals), len(goals)), [], dict.fromkeys(house["homes"], 0)
    if len(order) < 2 or sum(map(len, goals.values())) < count:
        return None
    while len(tasks) < count:
        for name in [name for name in order if goals[name]][: count - len(tasks)]:
            pair = min(goals[name], key=lambda pair: used[pair[0]])
            goals[name].remove(pair)
            used[pair[0]] += 1
            tasks.append(_task(house, name, *pair, rng))
    return tasks


def _task(house: dict[str, Any], name: str, kind: str, target: str, rng: random.Random) -> dict[str, Any]:
    words = {"obj": kind.lower(), "recep": target.lower(), "toggle": target.lower(), "mrecep": ""}
    counts = {k: rng.randint(1, 2) for k in house["homes"]} | ({kind: 2} if name == "two" else {})
    text = rng.choice(goal_library.gdict[TYPES[name]]["templates"]).format(**words)
    return {"type": name, "object": kind, "target": target, "text": text, "counts": counts}
