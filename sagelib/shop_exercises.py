"""Short exercises in copying for the shop: the look-ups that a row of a trial is made of."""

from __future__ import annotations

import random
from collections.abc import Iterable

from sagelib.rise_prompts import EMPTY, turn_text
from sagelib.rise_talk import written
from sagelib.shop_expert import HEAD, thought
from sagelib.shop_world import BRANDS, KINDS

PAIRS = ("list", "document", "note", "option", "match", "verdict", "revise")


def copying_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Short exercises (text -> code) with made-up stores, for `sft.encode_pair`.

    list, document: a product by its brand, or by what the document says of the wanted property. option: out of a goal. match,
    verdict: whether features are the wanted ones, and what is done then. note, revise: one line, or a document and its new lines.
    A small policy learns to copy from these first, as in the main job: after 200 batches of rows alone it still copied nothing.
    """
    rng = random.Random(seed)
    return [_pair(PAIRS[i % len(PAIRS)], rng) for i in range(count)]


def _pair(kind: str, rng: random.Random) -> dict[str, str]:
    query, noun, _, _, properties, options = rng.choice(KINDS)
    brands, own = rng.sample(BRANDS, len(properties)), rng.sample(properties, len(properties))
    codes = [f"S{first}{rng.randrange(10)}" for first in rng.sample(range(1, 10), len(properties))]
    shelf = "\n".join(["Results:", *(f"{brand} {noun} {code}" for brand, code in zip(brands, codes, strict=True))])
    store = list(zip(own, brands, strict=True))
    known = rng.sample(store, rng.randint(1, len(store)))
    wanted, brand = rng.choice(known)
    click = _act(f"click[{codes[brands.index(brand)].lower()}]")
    chosen = {key: rng.choice(values) for key, values in options.items()}
    goal = f"Find me {wanted} {query} with " + ", and ".join(f"{key.lower()}: {value}" for key, value in chosen.items())
    name = rng.choice(list(options))
    read = rng.choice([(wanted, brand), rng.choice(store)])    # as often the wanted one as any
    page = f"By {read[1]}.\nThis {noun} is {read[0]}."
    said = thought(goal, "", [page])
    first = f"click[{next(iter(chosen.values()))}]" if read[0] == wanted else "click[< prev]"
    before = [pair for pair in known if pair[0] != wanted]     # what is to be noted is not there yet
    unseen = [pair for pair in store if pair not in known]
    new = [(wanted, brand), *rng.sample(unseen, rng.randint(0, len(unseen)))][:2]
    seen = "\n".join(turn_text("click[features]", f"By {b}.\nThis {noun} is {p}.") for p, b in new)
    text, code = {
        "list": (f"{shelf}\n\nOpen: {brand}", click),
        "document": (f"Document:\n{_document(known)}\n\nTask: {goal}\n\n{shelf}", f"{wanted}: {brand}.\n{click}"),
        "note": (f"Document:\n{_document(before)}\n\nBy {brand}.\nThis {noun} is {wanted}.\n\nNote", f"- {wanted}: {brand}"),
        "option": (f"Task: {goal}\n\nOption {name.lower()}", _act(f"click[{chosen[name]}]")),
        "match": (f"Task: {goal}\n\n{page}", f"{said}\n{_act('click[< prev]')}"),
        "verdict": (f"Task: {goal}\n\n{page}\n\n{said}\n\n{read[1]} {noun}", _act(first)),
        "revise": (f"Document:\n{_document(before) if before else EMPTY}\n\nTask: {goal}\n\n{seen}\n\nWrite the skill.",
                   written("skill", "", _document([*before, *new]))),
    }[kind]
    return {"kind": kind, "text": text, "code": code}


def _document(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join([HEAD, *(f"- {prop}: {brand}" for prop, brand in pairs)])


def _act(action: str) -> str:
    return f"<action>{action}</action>"
