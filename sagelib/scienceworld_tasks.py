"""Which of ScienceWorld's tasks a size has, each tried once in the simulator. Runs in .venvs/scienceworld: SIZE DIRECTORY.

Two task types in which what was found out in one task is what the next one asks for, so that a document is worth something:

    inclined-plane-friction-named-surfaces   a family is a pair of surfaces; which of the two has more friction never changes
    test-conductivity                        a family is a thing; whether it conducts never changes

Variations are the package's, and so is what is for training, development and tests: a family is used only if all of its
variations are in one of the three. The package's training families are divided once more, into those of the demonstrations and
those of reinforcement learning. A task enters the list when the rule player's short plan, with one answer or the other, got the
full score.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sagelib.scienceworld_engine import Engine, Game, fingerprint, jar
from sagelib.scienceworld_expert import read_goal

FRICTION, CONDUCTIVITY = "inclined-plane-friction-named-surfaces", "test-conductivity"
VARIATIONS, BLOCKS = 1386, 3  # of friction: of each ordered pair of surfaces three, which differ in the block that slides down
THINGS, PLACES, PARTS = 12, 3, 25
# Families of each split (None: all), and variations of a thing at each of its three places.
SIZES = {"mini": {"pairs": None, "things": None, "each": 8}, "smoke": {"pairs": 2, "things": 1, "each": 2}}
DEMOS = 0.6                   # share of the official training families that are for demonstrations
LEAST = 6                     # tasks of a family: two sequences of three


def friction_families(engine: Engine) -> Iterator[list[int]]:
    """The variations of each pair of surfaces, in both orders."""
    found: dict[tuple[str, ...], list[int]] = {}
    firsts = range(0, VARIATIONS, BLOCKS)
    for first, instruction in zip(firsts, engine.instructions(FRICTION, firsts), strict=True):
        found.setdefault(tuple(sorted(read_goal(instruction).surfaces)), []).extend(range(first, first + BLOCKS))
    yield from found.values()


def conductivity_families(each: int) -> Iterator[list[int]]:
    """Of each thing ``each`` variations at every place, evenly over the boxes and the parts of the circuit."""
    for thing in range(THINGS):
        yield [PARTS * (PLACES * thing + place) + PARTS * n // each for place in range(PLACES) for n in range(each)]


def chosen(engine: Engine, task: str, families: Iterator[list[int]], count: int | None,
           seed: int) -> Iterator[tuple[str, list[int]]]:
    """(split, variations): ``count`` families of each split, drawn once by the seed."""
    game = Game(engine, task, 0)
    official = game.splits()
    game.close()
    where = {variation: split for split, variations in official.items() for variation in variations}
    pools: dict[str, list[list[int]]] = {"train": [], "dev": [], "test": []}
    for family in families:
        splits = {where[variation] for variation in family}
        if len(splits) == 1:
            pools[splits.pop()].append(family)
    random.Random(f"{seed} {task}").shuffle(pools["train"])
    cut = max(1, round(DEMOS * len(pools["train"])))
    for split, pool in (("demos", pools["train"][:cut]), ("train", pools["train"][cut:]), ("dev", pools["dev"]),
                        ("test", pools["test"])):
        for family in pool[:count]:
            yield split, family


def tried(engine: Engine, task: str, variation: int) -> dict[str, Any]:
    """The task with the answer that was right: the one given, or the other one when that was wrong. ``plan`` is None: neither."""
    game = Game(engine, task, variation)
    goal = read_goal(game.instruction)
    answers = list(goal.surfaces if task == FRICTION else goal.facts)
    row = {"task_id": f"{task}/{variation}", "instruction": game.instruction, "plan": None,
           "fingerprint": fingerprint(task, variation, game.instruction, game.start)}
    row["family"] = "friction/" + " and ".join(sorted(goal.surfaces)) if task == FRICTION else f"conductivity/{goal.noun}"
    for action in goal.plan(answers[0]):
        game.step(action)
    if game.done:   # else the plan does not work at all
        answer = answers[0] if game.score == 1.0 else answers[1]
        row |= {"plan": goal.plan(answer), "answer": answer}
    game.close()
    return row


def build(size: str, directory: Path, seed: int) -> None:
    """Writes tasks.jsonl, sorted; what it says on stdout is for the log."""
    engine, settings, rows = Engine(), SIZES[size], []
    for task, families, count in ((FRICTION, friction_families(engine), settings["pairs"]),
                                  (CONDUCTIVITY, conductivity_families(settings["each"]), settings["things"])):
        for split, variations in chosen(engine, task, families, count, seed):
            found = [tried(engine, task, variation) for variation in variations]
            good = [row | {"split": split} for row in found if row["plan"]]
            names, answers = {row["family"] for row in found}, Counter(row["answer"] for row in good)
            facts = {json.dumps(read_goal(row["instruction"]).learnt(row["answer"], True), sort_keys=True) for row in good}
            if len(names) > 1 or len(facts) > 1:
                raise SystemExit(f"{task} {variations}: families {sorted(names)}, facts {sorted(facts)}: another package?")
            left_out = "" if len(good) == len(found) else f", {len(found) - len(good)} left out: the short plan does not work"
            print(f"{split}: {names.pop()}: {len(good)} tasks, answers {dict(answers)}{left_out}", flush=True)
            rows += good if len(good) >= LEAST else []
    engine.close()
    (directory / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda r: r["task_id"])))
    print(f"{len(rows)} tasks of {jar().name}", flush=True)


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
