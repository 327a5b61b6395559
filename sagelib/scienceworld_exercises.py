"""Short exercises in copying for ScienceWorld: the look-ups that a row of a trial is made of, with made-up things."""

from __future__ import annotations

import random

from sagelib.scienceworld_expert import HEAD, Conductivity, Friction

PAIRS = ("surface", "box", "fetch", "plane note", "box note")
COLOURS = ("red", "green", "blue", "orange", "yellow", "purple")
PLACES = ("kitchen", "living room", "workshop")
FIRST = ("metal", "plastic", "glass", "paper", "wood", "steel", "rubber", "tin", "brass", "clay", "ice", "salt", "wax", "silk",
         "lead", "iron")
SECOND = ("", "", " cup", " fork", " pot", " clip", " block", " foil", " jar", " key", " rope", " coin", " water", " leaf")


def copying_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Exercises (text -> code), for `sft.encode_pair`.

    surface, box: the answer that the document gives. fetch: where a thing is, and its name. plane note, box note: the line of the
    document after an answer that was right or not.
    """
    rng, found = random.Random(seed), []
    for i in range(count):
        kind = PAIRS[i % len(PAIRS)]
        a, b = rng.sample(FIRST, 2)
        friction = Friction((a + rng.choice(SECOND), b + rng.choice(SECOND)), rng.choice(("most", "least")))
        boxes = rng.sample(COLOURS, 2)
        thing = Conductivity(rng.choice(FIRST) + rng.choice(SECOND), rng.choice(PLACES), (f"{boxes[0]} box", f"{boxes[1]} box"))
        goal = friction if kind in ("surface", "plane note") else thing
        right, answer = rng.random() < 0.5, rng.choice(friction.surfaces if goal is friction else thing.facts)
        lines = "\n".join(f"- {name}: {value}" for name, value in sorted(goal.learnt(answer, right).items()))
        told = _said(goal)
        tried = f"Action: {goal.plan(answer)[-1]}\n\nOutcome: {'SUCCESS' if right else 'FAILURE'}"
        text, code = {
            "surface": (f"Document:\n{HEAD}\n{lines}\n\nTask: {told}", _act(goal.plan(goal.known(lines) or "")[-1])),
            "box": (f"Document:\n{HEAD}\n{lines}\n\nTask: {told}", _act(goal.plan(goal.known(lines) or answer)[-1])),
            "fetch": (f"Task: {told}", "\n".join(map(_act, thing.fetch()))),
            "plane note": (f"Task: {told}\n\n{tried}\n\nNote", lines),
            "box note": (f"Task: {told}\n\n{tried}\n\nNote", lines),
        }[kind]
        found.append({"kind": kind, "text": text, "code": code})
    return found


def _said(goal: Friction | Conductivity) -> str:
    """The task in the package's words, as far as they matter."""
    if isinstance(goal, Friction):
        a, b = goal.surfaces
        return (f"Your task is to determine which of the two inclined planes ({a}, {b}) has the {goal.question} friction. After "
                f"completing your experiment, focus on the inclined plane with the {goal.question} friction.")
    yes, no = goal.boxes
    return (f"Your task is to determine if {goal.thing} is electrically conductive. The {goal.thing} is located around the "
            f"{goal.at}. First, focus on the {goal.thing}. If it is electrically conductive, place it in the {yes}. If it is "
            f"electrically nonconductive, place it in the {no}.")


def _act(action: str) -> str:
    return f"<action>{action}</action>"
