"""Short exercises in copying for the shop: the look-ups that a row of a trial is made of."""

from __future__ import annotations

import random

from sagelib.shop_expert import HEAD
from sagelib.shop_world import BRANDS, KINDS

PAIRS = ("list", "document", "note", "option")


def copying_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Short exercises (text -> code) with made-up stores, for `sft.encode_pair`: the look-ups that a row of a trial is made of.

    A product by its brand in a list, a brand by its property in a document, both written down, an option out of a goal. A small
    policy learns to copy from these first, as in the main job: after 200 batches of rows alone it still copied nothing.
    """
    rng, found = random.Random(seed), []
    for i in range(count):
        query, noun, _, _, properties, options = rng.choice(KINDS)
        brands, own = rng.sample(BRANDS, len(properties)), rng.sample(properties, len(properties))
        codes = [f"S{first}{rng.randrange(10)}" for first in rng.sample(range(1, 10), len(properties))]
        shelf = "\n".join(["Results:", *(f"{brand} {noun} {code}" for brand, code in zip(brands, codes, strict=True))])
        known = sorted(rng.sample(list(zip(own, brands, strict=True)), rng.randint(1, len(own))))
        wanted, brand = rng.choice(known)
        kind = PAIRS[i % len(PAIRS)]
        known = [pair for pair in known if kind != "note" or pair[0] != wanted]   # what is to be noted is not there yet
        document = "\n".join([HEAD, *(f"- {prop}: {name}" for prop, name in known)])
        click = f"<action>click[{codes[brands.index(brand)].lower()}]</action>"
        name = rng.choice(list(options))
        chosen = {key: rng.choice(others) for key, others in options.items()}
        goal = f"Find me {wanted} {query} with " + ", and ".join(f"{key.lower()}: {value}" for key, value in chosen.items())
        text, code = {
            "list": (f"{shelf}\n\nOpen: {brand}", click),
            "document": (f"Document:\n{document}\n\nTask: {goal}\n\n{shelf}", click),
            "note": (f"Document:\n{document}\n\nBy {brand}.\nThis {noun} is {wanted}.\n\nNote", f"- {wanted}: {brand}"),
            "option": (f"Task: {goal}\n\nOption {name.lower()}", f"<action>click[{chosen[name]}]</action>"),
        }[kind]
        found.append({"kind": kind, "text": text, "code": code})
    return found
