"""Short text -> code pairs: what a phrase of an instruction, or a whole one, means in code. Values are random.

They teach to copy values and to compose parts. Whole functions occur for every combination that the grammar allows,
but never for one that a held-out family uses (dev and test_normal, in whatever way the value is given), nor for the
apps of test_challenge: those occur as single parts, here only. No pair was run.
"""

import random
from dataclasses import replace

from drafts import NOTE_LINES, NOTE_TITLES, TEXT_LINES, quote, thoughts
from scenario import HELPERS, Family, Question

FIRST = (
    "Ava Bela Cora Dan Edda Finn Gita Hugo Ines Jan Kira Leo Mona Nils Olga Paul Quinn Rosa Sven Tara Ugo Vera Will Xenia "
    "Yara Zeno Amir Bruno Clara Diego Elena Farid Greta Hassan Irene Jonas Karim Lucia Marco Nadia Oscar Petra"
).split()
SYLLABLES = "ba be bo da de do fa fe ga go ha he ka ko la le lo ma me mo na ne no pa po ra re ro sa se so ta te to va ve wa wi zo".split()
PER_KIND = 5000
VIAS = ("direct", "note", "text")
LOOK_UPS = 0.4
STORED = 0.4


def word(rng: random.Random) -> str:
    """A made-up word of two to four syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))


def value_for(family: Family, rng: random.Random) -> object:
    """A random value of the kind that the family's filter takes."""
    noun = family.filter.noun
    if noun not in ("time", "date") and family.filter.how in ("over", "under"):
        return rng.randint(2, 400)
    if noun in ("artist", "person", "sender", "contact", "payer"):
        return f"{rng.choice(FIRST)} {word(rng).capitalize()}"
    if noun == "ending":
        return "." + word(rng)[:4]
    if noun == "time":
        return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    if noun == "date":
        return f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    if noun == "snooze":
        return rng.randint(1, 90)
    text = word(rng) if rng.random() < 0.7 else f"{word(rng)} {word(rng)}"
    return text.capitalize() if noun == "subject" else text


def phrase(family: Family, value: object) -> str:
    """The filter's phrase with its value."""
    return family.filter.text.replace("{value}", quote(value))


def make(families: list[Family], seed: int) -> list[dict]:
    """About 30,000 pairs in a shuffled order, the same for the same seed."""
    rng = random.Random(seed)
    unique = {
        kind: list({(f.app, getattr(f, kind).name): f for f in families}.values())
        for kind in ("source", "filter", "verb")
    }
    whole = combinations(families)
    lines = []
    for n in range(PER_KIND):
        f = unique["source"][n % len(unique["source"])]
        lines.append({"app": f.app, "kind": "source", "text": f"{f.app}: {f.source.text}", "code": f.source.code})
        f = unique["filter"][n % len(unique["filter"])]
        value = value_for(f, rng)
        lines.append({"app": f.app, "kind": "filter", "text": f"{f.app}: {phrase(f, value)}", "code": f.filter.code})
        f = unique["verb"][n % len(unique["verb"])]
        lines.append(
            {
                "app": f.app,
                "kind": "action",
                "text": f"{f.app}: {verb_text(f)}",
                "code": f.verb.code.replace("{item}", f.source.item),
            }
        )
        lines.append(call_pair(n, unique, whole, rng))
        lines += [reply_pair(rng.choice(whole), rng) for _ in range(2)]
    rng.shuffle(lines)
    return lines


def combinations(families: list[Family]) -> list[Family]:
    """Verb x source x filter where source and verb, and source and filter, occur together, in apps with demonstrations.

    Never one that belongs to a held-out family.
    """
    shown = {f.app for f in families if f.split == "demos"}
    held = {(f.app, f.skill) for f in families if f.split not in ("demos", "train")}
    known = [f for f in families if f.app in shown]
    found = {}
    for a in known:
        for b in (b for b in known if (b.app, b.source) == (a.app, a.source)):
            mixed = replace(a, split="demos", filter=b.filter)
            if (mixed.app, mixed.skill) not in held:
                found[mixed.app, mixed.skill] = mixed
    return [found[key] for key in sorted(found)]


def reply_pair(family: Family, rng: random.Random) -> dict:
    """An instruction -> the main function and its call; where a note or message holds the value, also the look-up.

    Kinds: ``main`` (value in the instruction), ``read`` (-> the look-up), ``after`` (instruction, look-up and what it
    showed -> the main function: the instruction has to be read again, from behind the look-up). A share of `STORED`
    has all functions in its text, as a prompt lists skills: then the code only calls them.
    """
    family, value = replace(family, via=rng.choice(VIAS)), value_for(family, rng)
    name = f"{rng.choice(FIRST)} {word(rng).capitalize()}"
    origin = {"direct": "", "note": rng.choice(NOTE_TITLES), "text": name}[family.via]
    task, said, main = family.instruction(quote(value), origin), thoughts(family, origin), [family.main()]
    helpers = [HELPERS[name] for name in ("login", "pages", *([f"read_{family.via}"] if origin else []))]
    text, stored = f"{family.app}: {task}", rng.random() < STORED
    if stored:
        listing = "\n".join(helpers + main)
        text, helpers, main = f"Skills:\n{listing}\n\nTask: {task}", [], []
    call = f"{family.skill}({quote(value)})"
    code = "\n".join([*main, f"print({call})" if isinstance(family.verb, Question) else call])
    pair = {"app": family.app, "kind": "main", "text": text, "thought": said["main"], "code": code, "value": value}
    if family.via == "direct":
        return pair
    look_up = f"print(read_{family.via}({quote(origin)}))"
    if rng.random() < LOOK_UPS:
        return pair | {"kind": "read", "thought": said["read"], "code": look_up, "value": origin}
    if rng.random() < 0.5:  # the agent has no helpers yet and writes them first
        look_up = "\n".join([*helpers, look_up])
    line, noun = rng.choice(NOTE_LINES if family.via == "note" else TEXT_LINES), family.filter.noun
    shown = line.format(noun=noun, Noun=noun.capitalize(), value=quote(value))
    return pair | {"kind": "after", "look_thought": said["read"], "look_up": look_up, "shown": shown}


def verb_text(family: Family) -> str:
    """The words of an action or question without its rows."""
    text = family.verb.text.replace("{rows}", "...")
    return text if isinstance(family.verb, Question) else " ".join(filter(None, (text, family.verb.tail)))


def call_pair(n: int, unique: dict, whole: list[Family], rng: random.Random) -> dict:
    """How a phrase is named in a call: one part, or a whole instruction."""
    if n % 4 == 0:
        f = replace(rng.choice(whole), via="direct")
        value = value_for(f, rng)
        text, code = f.instruction(quote(value), ""), f"{f.skill}({quote(value)})"
        return {"app": f.app, "kind": "call", "text": f"{f.app}: {text}", "code": code, "value": value}
    kind = ("source", "filter", "verb")[n % 4 - 1]
    f = rng.choice(unique[kind])
    value = value_for(f, rng)
    text, code = {
        "source": (f.source.text, f.source.name),
        "filter": (phrase(f, value), f"{f.filter.name}({quote(value)})"),
        "verb": (verb_text(f), f.verb.name),
    }[kind]
    return {"app": f.app, "kind": "call", "text": f"{f.app}: {text}", "code": code, "value": value}
