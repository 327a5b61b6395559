"""A rule expert for the shop, in both roles. It sees what a policy sees: the goal, the document and the pages so far.

The solver searches for the kind of product and opens the brand that the document names for the wanted property. Without such a
line it opens one product after the other and reads its features, passing over brands that the document names for another
property. The curator keeps one line ``property: Brand`` for each pair that it has seen: what demonstrations teach, and the
ceiling of what carrying a document can bring here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sagelib.shop_world import KINDS

LINE = re.compile(r"^- ([a-z ]+): ([A-Z][a-z]+)$", re.MULTILINE)
FEATURE = re.compile(r"This [a-z ]+ is ([a-z ]+)\.")


@dataclass(frozen=True)
class Goal:
    """What the instruction asks for."""

    query: str
    wanted: str
    options: tuple[str, ...]


def read_goal(instruction: str) -> Goal:
    """ValueError for an instruction that is not one of the generated shop's."""
    head, _, rest = instruction.removeprefix("Find me ").partition(" with ")
    for query, _, _, _, properties, _ in KINDS:
        for wanted in properties:
            if head == f"{wanted} {query}":
                return Goal(query, wanted, tuple(re.findall(r"[a-z]+: ([^,]+)(?:, and|$)", rest)))
    raise ValueError(f"not a goal of the generated shop: {instruction!r}")


def read_document(document: str) -> dict[str, str]:
    """property -> brand."""
    return dict(LINE.findall(document))


def next_action(instruction: str, document: str, actions: Sequence[str], pages: Sequence[str]) -> str:
    """The expert's action after ``actions``; ``pages[i]`` is what actions[i] led to."""
    goal, known = read_goal(instruction), read_document(document)
    if not actions:
        return f"search[{goal.query}]"
    page, last = pages[-1], actions[-1]
    if "Page 1 (" in page:
        return f"click[{_choose(page, goal, known, actions)}]"
    if "Rating: N.A." not in page:                       # a features page
        return "click[< prev]"
    brand, seen = re.search(r"\[SEP\] (\w+) [\w ]+ \[SEP\] Price", page)[1], _features(pages, actions)
    if brand not in seen and known.get(goal.wanted) != brand:
        return "click[features]"
    if known.get(goal.wanted) != brand and seen.get(brand) != goal.wanted:
        return "click[< prev]"                           # back to the results
    clicked = [a[6:-1] for a in actions[_opened(actions):]]
    left = [value for value in goal.options if value not in clicked]
    return f"click[{left[0]}]" if left else ("click[buy now]" if last else "")


def _opened(actions: Sequence[str]) -> int:
    """Where the product that is open now was opened: options chosen before that are gone."""
    return max(i for i, action in enumerate(actions) if re.fullmatch(r"click\[s[a-z0-9]{9}\]", action))


def _choose(page: str, goal: Goal, known: dict[str, str], actions: Sequence[str]) -> str:
    """The product to open: the known brand's, else the first that was neither opened nor is known to be something else."""
    listed = re.findall(r"(S[A-Z0-9]{9}) \[SEP\] (\w+)", page)
    for asin, brand in listed:
        if known.get(goal.wanted) == brand:
            return asin.lower()
    fresh = [asin.lower() for asin, brand in listed if brand not in known.values() and f"click[{asin.lower()}]" not in actions]
    return fresh[0] if fresh else listed[0][0].lower()


def _features(pages: Sequence[str], actions: Sequence[str]) -> dict[str, str]:
    """brand -> property, of the features pages that were opened."""
    found, brand = {}, ""
    for page in pages:
        if match := re.search(r"\[SEP\] (\w+) [\w ]+ \[SEP\] Price", page):
            brand = match[1]
        elif (match := FEATURE.search(page)) and "Page 1 (" not in page:
            found[brand] = match[1]
    return found


def revised_document(document: str, pages: Sequence[str], actions: Sequence[str]) -> str:
    """The document with what the attempt showed; the same text when it showed nothing new."""
    known = read_document(document) | {wanted: brand for brand, wanted in _features(pages, actions).items()}
    return "\n".join(["When to use: choosing a brand in this store.", *(f"- {k}: {v}" for k, v in sorted(known.items()))])


# ---- as replies to what a policy reads

def reply_to(talk: str) -> str:
    """The reply to a whole conversation, decoded with its special tokens (see `rise_prompts` for its parts)."""
    document = (re.findall(r"Document:\n(.*?)\n\nTask: ", talk, re.DOTALL) or [""])[0]
    instruction = re.search(r"Task: (.*)", talk)[1]
    history = re.findall(r"Action: (.*)\nObservation: (.*)", talk)
    actions, pages = [a for a, _ in history], [p for _, p in history]
    if "\nWrite the skill." in talk:
        return f"I note what holds in this store.\n<skill>\n{revised_document(document, pages, actions)}\n</skill>"
    actions += re.findall(r"<action>(.*?)</action>", talk.partition("<|im_start|>assistant")[2])
    pages += re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", talk.partition("<|im_start|>assistant")[2], re.DOTALL)
    return f"<action>{next_action(instruction, document, actions, pages)}</action>"
