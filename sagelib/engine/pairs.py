"""Short phrase -> code pairs: the vocabulary of all parts, with values from large random pools.

They teach what a phrase of an instruction means in code and to copy values. Whole instructions occur for train
families only; the apps of test_challenge occur as single parts, here and nowhere else in the training data.
"""

import random

from drafts import NOTE_TITLES, quote
from scenario import Family, Question

FIRST = (
    "Ava Bela Cora Dan Edda Finn Gita Hugo Ines Jan Kira Leo Mona Nils Olga Paul Quinn Rosa Sven Tara Ugo Vera Will Xenia "
    "Yara Zeno Amir Bruno Clara Diego Elena Farid Greta Hassan Irene Jonas Karim Lucia Marco Nadia Oscar Petra"
).split()
SYLLABLES = "ba be bo da de do fa fe ga go ha he ka ko la le lo ma me mo na ne no pa po ra re ro sa se so ta te to va ve wa wi zo".split()
PER_KIND = 5000


def word(rng: random.Random) -> str:
    """A made-up word of two to four syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))


def value_for(family: Family, rng: random.Random) -> object:
    """A random value of the kind that the family's filter takes."""
    noun = family.filter.noun
    if family.filter.how in ("over", "under"):
        return rng.randint(2, 400)
    if noun in ("artist", "person", "sender", "contact", "payer"):
        return f"{rng.choice(FIRST)} {word(rng).capitalize()}"
    if noun == "ending":
        return "." + word(rng)[:4]
    if noun == "snooze":
        return rng.randint(1, 90)
    return word(rng) if rng.random() < 0.7 else f"{word(rng)} {word(rng)}"


def phrase(family: Family, value: object) -> str:
    """The filter's phrase with its value."""
    return family.filter.text.replace("{value}", quote(value))


def make(families: list[Family], seed: int) -> list[dict]:
    """About 20,000 pairs in a shuffled order, the same for the same seed."""
    rng = random.Random(seed)
    unique = {
        kind: list({(f.app, getattr(f, kind).name): f for f in families}.values())
        for kind in ("source", "filter", "verb")
    }
    train = [f for f in families if f.split == "train"]
    lines = []
    for n in range(PER_KIND):
        f = unique["source"][n % len(unique["source"])]
        lines.append({"app": f.app, "kind": "source", "text": f"{f.app}: {f.source.text}", "code": f.source.code})
        f = unique["filter"][n % len(unique["filter"])]
        lines.append(
            {"app": f.app, "kind": "filter", "text": f"{f.app}: {phrase(f, value_for(f, rng))}", "code": f.filter.code}
        )
        f = unique["verb"][n % len(unique["verb"])]
        lines.append(
            {
                "app": f.app,
                "kind": "action",
                "text": f"{f.app}: {verb_text(f)}",
                "code": f.verb.code.replace("{item}", f.source.item),
            }
        )
        lines.append(call_pair(n, unique, train, rng))
    rng.shuffle(lines)
    return lines


def verb_text(family: Family) -> str:
    """The words of an action or question without its rows."""
    text = family.verb.text.replace("{rows}", "...")
    return text if isinstance(family.verb, Question) else " ".join(filter(None, (text, family.verb.tail)))


def call_pair(n: int, unique: dict, train: list[Family], rng: random.Random) -> dict:
    """How a phrase is named in a call: one part, a look-up, or the whole instruction of a train family."""
    if n % 4 == 0:
        f = rng.choice(train)
        value = value_for(f, rng)
        text, code = f.instruction(quote(value), rng.choice(NOTE_TITLES)), f"{f.skill}({quote(value)})"
        if f.via != "direct":
            title = (
                f"{rng.choice(FIRST)} {word(rng).capitalize()}"
                if f.via == "text"
                else f"{word(rng)} {word(rng)}".capitalize()
            )
            text, code = f.instruction(quote(value), title), f"print(read_{f.via}({quote(title)}))"
        return {"app": f.app, "kind": "call", "text": f"{f.app}: {text}", "code": code}
    kind = ("source", "filter", "verb")[n % 4 - 1]
    f = rng.choice(unique[kind])
    value = value_for(f, rng)
    text, code = {
        "source": (f.source.text, f.source.name),
        "filter": (phrase(f, value), f"{f.filter.name}({quote(value)})"),
        "verb": (verb_text(f), f.verb.name),
    }[kind]
    return {"app": f.app, "kind": "call", "text": f"{f.app}: {text}", "code": code}
