"""Short exercises in copying for ALFWorld: the look-ups that a row of a trial is made of, with made-up rooms and documents."""

from __future__ import annotations

import random

from sagelib.alfworld_expert import HEAD, NOTHING

PAIRS = ("note", "nothing", "document", "next", "take", "move")
KINDS = ("apple", "mug", "plate", "bowl", "pan", "pot", "egg", "bread", "tomato", "potato", "knife", "fork", "spoon", "book",
         "spatula", "pen", "pencil", "laptop", "pillow", "watch", "vase", "statue", "candle", "cloth", "soapbar", "soapbottle",
         "box", "spraybottle", "toiletpaper", "handtowel", "cellphone", "creditcard", "keychain", "remotecontrol", "cd")
PLACES = ("cabinet", "countertop", "drawer", "shelf", "sidetable", "diningtable", "coffeetable", "desk", "dresser", "bed", "sofa",
          "armchair", "fridge", "microwave", "sinkbasin", "garbagecan", "toilet", "cart", "safe", "ottoman")
ON = ("On the {place}, you see {list}.", "The {place} is open. In it, you see {list}.")


def copying_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Exercises (text -> code), for `sft.encode_pair`.

    note, nothing: what is seen becomes a line of the document. document: where the wanted kind is kept. next: the place after
    this one in the room's list. take, move: the names of what is held, and of where.
    """
    rng, found = random.Random(seed), []
    for i in range(count):
        kind = PAIRS[i % len(PAIRS)]
        room = [f"{place} {n}" for place in sorted(rng.sample(PLACES, 5)) for n in range(rng.randint(1, 3), 0, -1)]
        kinds = rng.sample(KINDS, 4)
        places = rng.sample(room, 4)
        document = "\n".join([HEAD, *(f"- {k}: {p}" for k, p in sorted(zip(kinds[1:], places[1:], strict=True)))])
        wanted, place = rng.choice(list(zip(kinds[1:], places[1:], strict=True)))
        thing = f"{kinds[0]} {rng.randint(1, 2)}"
        listed = _list([thing, f"{kinds[1]} 1"][: rng.randint(1, 2)])
        before = rng.randrange(len(room) - 1)
        view, nothing = (rng.choice(ON).format(place=places[0], list=text) for text in (listed, "nothing"))
        text, code = {
            "note": (f"Document:\n{document}\n\n{view}\n\nNote {kinds[0]}", f"- {kinds[0]}: {places[0]}"),
            "nothing": (f"Document:\n{document}\n\n{nothing}\n\nNote", f"- {NOTHING}: {places[0]}"),
            "document": (f"Document:\n{document}\n\nTask: put a {wanted} in {rng.choice(PLACES)}", _act(f"go to {place}")),
            "next": (f"You see {_list(room)}.\n\nAfter {room[before]}", _act(f"go to {room[before + 1]}")),
            "take": (f"Task: put a {kinds[0]} in {rng.choice(PLACES)}\n\n{view}", _act(f"take {thing} from {places[0]}")),
            "move": (f"You pick up the {thing} from the {places[0]}.\n\nTo {places[1]}", _act(f"move {thing} to {places[1]}")),
        }[kind]
        found.append({"kind": kind, "text": text, "code": code})
    return found


def _list(names: list[str]) -> str:
    """As the engine lists things: "a mug 1, a mug 2, and a pan 1"."""
    named = [f"a {name}" for name in names]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + f", and {named[-1]}"


def _act(action: str) -> str:
    return f"<action>{action}</action>"
