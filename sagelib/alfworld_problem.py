"""A task of a generated house as ALFWorld's game data: the PDDL problem under the package's domain and grammar."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from alfworld.gen import constants, goal_library
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

from sagelib.alfworld_houses import TYPES, kind_of

RECEPTACLE_TYPES = sorted(constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET)
OBJECT_TYPES = sorted(constants.OBJECTS_SET - set(RECEPTACLE_TYPES))
ABILITIES = {"cleanable": "Cleanable", "heatable": "Heatable", "coolable": "Coolable", "toggleable": "Toggleable",
             "sliceable": "Sliceable"}
MANGLED = (("-", "_minus_"), ("#", "-"), ("|", "_bar_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))


@cache
def domain_and_grammar() -> tuple[str, str]:
    return Path(ALFRED_PDDL_PATH).read_text(), Path(ALFRED_TWL2_PATH).read_text()


def mangle(text: str) -> str:
    """Ids as PDDL can read them; ``#`` stands for the dash of PDDL's own types until here, as in the package's templates."""
    for old, new in MANGLED:
        text = text.replace(old, new)
    return text


def objects_of(house: dict[str, Any], task: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """id -> (kind, receptacle) of everything that lies about, the lamp included."""
    at = [(kind, house["homes"][kind], n) for kind, count in task["counts"].items() for n in range(count)]
    at += [("DeskLamp", house["lamp"], 0)] if house["lamp"] else []
    found = {}
    for kind, place, n in at:
        x, z = (int(part) / 4 for part in house["receptacles"][place].split("|")[1:3])
        found[f"{kind}|{x:+06.2f}|+00.{90 + n}|{z:+06.2f}"] = (kind, place)
    return found


def problem(house: dict[str, Any], task: dict[str, Any]) -> str:
    """The PDDL problem, with the facts that ALFWorld's own games have."""
    places, things = house["receptacles"], objects_of(house, task)
    kinds = sorted({kind for kind, _ in things.values()})
    locations = sorted({house["start"], *places.values()})
    names = [*(f"{o} # object" for o in OBJECT_TYPES), *(f"{o}Type # otype" for o in OBJECT_TYPES),
             *(f"{r}Type # rtype" for r in RECEPTACLE_TYPES), *(f"{o} # object" for o in things),
             *(f"{r} # receptacle" for r in places), *(f"{at} # location" for at in locations)]
    facts = [f"receptacleType {r} {kind_of(r)}Type" for r in places]
    facts += [f"objectType {o} {kind}Type" for o, (kind, _) in things.items()]
    facts += sorted({f"canContain {kind_of(r)}Type {kind}Type" for r in places for kind in kinds
                     if kind in constants.VAL_RECEPTACLE_OBJECTS.get(kind_of(r), ())})
    facts += [f"pickupable {o}" for o, (kind, _) in things.items() if kind != "DeskLamp"]
    facts += [f"isReceptacleObject {o}" for o, (kind, _) in things.items() if kind in constants.MOVABLE_RECEPTACLES_SET]
    facts += [f"openable {r}" for r in house["openable"]]
    facts += [f"atLocation agent1 {house['start']}"]
    facts += [f"{fact} {o}" for fact, ability in ABILITIES.items() for o, (kind, _) in things.items()
              if kind in constants.VAL_ACTION_OBJECTS[ability]]
    facts += [f"inReceptacle {o} {r}" for o, (_, r) in things.items()]
    facts += [f"receptacleAtLocation {r} {at}" for r, at in places.items()]
    facts += [f"objectAtLocation {o} {places[r]}" for o, (_, r) in things.items()]
    goal = goal_library.gdict[TYPES[task["type"]]]["pddl"].format(
        obj=task["object"], recep=task["target"], toggle=task["target"], mrecep="")
    head = "\n(define (problem generated)\n(:domain alfred)\n(:objects\nagent1 # agent\n"
    return mangle(head + "\n".join(names) + "\n)\n(:init\n" + "\n".join(f"({fact})" for fact in facts) + "\n)\n" + goal)


def game_data(house: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """What a game.tw-pddl file holds."""
    domain, grammar = domain_and_grammar()
    return {"pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", task["text"]),
            "pddl_problem": problem(house, task), "solvable": True, "walkthrough": task.get("walkthrough")}
