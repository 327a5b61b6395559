"""Rule players for the shop, in both roles. They see what a policy sees: the goal, the document and the pages so far.

The expert searches for the kind of product and opens the brand that the document names for the wanted property. Without such a
line it opens one product after the other and reads its features, passing over brands that the document names for another
property. As the curator it keeps one line ``property: Brand`` for each pair that it has seen, in the order in which it saw them.

Before it acts on a list or on features it says in words what it looked up (`thought`): a small policy learns to copy twice in a
row, where it did not learn to act on the comparison of two texts that stand far apart (LOG.md).

`Style` says what a player leaves out; to be careful is to read the features of a product before it is bought, else the first one
that is listed will do. Demonstrations hold several styles (see `rise_demos`), so that reinforcement learning has
something to choose from; the expert alone is the ceiling of what carrying a document can bring here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sagelib.rise_talk import read_talk, written
from sagelib.rise_worlds import EXPERT, Style
from sagelib.shop_world import KINDS

LINE = re.compile(r"^- ([a-z ]+): ([A-Z][a-z]+)$", re.MULTILINE)
ITEM = re.compile(r"([A-Z][a-z]+) [a-z ]+(?:\nchosen: .*)?")
FEATURES = re.compile(r"By ([A-Z][a-z]+)\.\nThis [a-z ]+ (?:is|are) ([a-z ]+)\.")
OPEN = re.compile(r"click\[s\d\d\]")
HEAD, GENERAL = "Brands of this store:", "Read the features before you buy."


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


def next_action(instruction: str, document: str, actions: Sequence[str], pages: Sequence[str], style: Style = EXPERT) -> str:
    """The action after ``actions``; ``pages[i]`` is what actions[i] led to (the short view of `shop_server`)."""
    goal, known = read_goal(instruction), read_document(document) if style.document else {}
    if not actions:
        return f"search[{goal.query}]"
    if pages[-1].startswith("Results:"):
        return f"click[{_choose(pages[-1], goal, known, actions)}]"
    item = ITEM.fullmatch(pages[-1])
    if item is None:                                     # a features page
        return "click[< prev]"
    brand, seen = item[1], _features(pages)
    if style.careful and known.get(goal.wanted) != brand:
        if brand not in seen:
            return "click[features]"
        if seen[brand] != goal.wanted:
            return "click[< prev]"                       # back to the results
    clicked = [action[6:-1] for action in actions[_opened(actions):]]
    left = [value for value in goal.options if value not in clicked]
    return f"click[{left[0]}]" if left else "click[buy now]"


def thought(instruction: str, document: str, pages: Sequence[str], style: Style = EXPERT) -> str:
    """What is said before the action: whose product is wanted, if the document tells; whether features are the wanted ones."""
    wanted, page = read_goal(instruction).wanted, pages[-1] if pages else ""
    known = read_document(document) if style.document else {}
    if page.startswith("Results:") and wanted in known:
        return f"{wanted}: {known[wanted]}."
    if match := FEATURES.fullmatch(page):
        return f"This is {match[2]}, wanted is {wanted}: {'yes' if match[2] == wanted else 'no'}."
    return ""


def _opened(actions: Sequence[str]) -> int:
    """Where the product that is open now was opened: options chosen before that are gone."""
    return max(i for i, action in enumerate(actions) if OPEN.fullmatch(action))


def _choose(page: str, goal: Goal, known: dict[str, str], actions: Sequence[str]) -> str:
    """The product to open: the known brand's, else the first that was neither opened nor is known to be something else."""
    listed = re.findall(r"^(\w+) .* (S\d\d)$", page, re.MULTILINE)
    for brand, asin in listed:
        if known.get(goal.wanted) == brand:
            return asin.lower()
    fresh = [asin.lower() for brand, asin in listed if brand not in known.values() and f"click[{asin.lower()}]" not in actions]
    return fresh[0] if fresh else listed[0][1].lower()


def _features(pages: Sequence[str]) -> dict[str, str]:
    """brand -> property, of the features pages that were opened."""
    return {match[1]: match[2] for page in pages if (match := FEATURES.fullmatch(page))}


def revised_document(document: str, pages: Sequence[str], style: Style = EXPERT) -> str:
    """The document with what the attempt showed; the same pairs when it showed nothing new."""
    if not style.notes:
        return GENERAL
    known = read_document(document) | {wanted: brand for brand, wanted in _features(pages).items()}
    return "\n".join([HEAD, *(f"- {k}: {v}" for k, v in known.items())])


# ---- as replies to what a policy reads

def reply_to(text: str, style: Style = EXPERT) -> str:
    """The reply to a whole conversation, decoded with its special tokens."""
    talk = read_talk(text)
    if talk.writing:
        document = revised_document(talk.document, talk.pages, style)
        return f"I note what holds here.\n{written(talk.tag, talk.document, document)}"
    said = thought(talk.instruction, talk.document, talk.pages, style)
    action = next_action(talk.instruction, talk.document, talk.actions, talk.pages, style)
    return f"{said}\n<action>{action}</action>".lstrip()
