"""ALFWorld's texts: how they are shown, and how a rule player reads them. Standard library only, for both environments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

INTRO = re.compile(r"ALFRED! =-\n\n(.*)\n\nYour task is to: (.*?)\.?\s*$", re.DOTALL)
LEADS = re.compile(r"^(?:You are in the middle of a room\. Looking quickly around you, y|You (?:arrive at|open the) [^.]*\. )")
THING = re.compile(r"\ban? (\w+ \d+)")
GOALS = (
    ("pick", r"put (?:a|some) (\w+) (?:in|on) (\w+)"),
    ("clean", r"put a clean (\w+) in (\w+)|clean some (\w+) and put it in (\w+)"),
    ("heat", r"put a hot (\w+) in (\w+)|heat some (\w+) and put it in (\w+)"),
    ("cool", r"put a cool (\w+) in (\w+)|cool some (\w+) and put it in (\w+)"),
    ("two", r"(?:put two|find two) (\w+)(?: and put them)? in (\w+)"),
    ("look", r"look at (\w+) under the (\w+)|examine the (\w+) with the (\w+)"),
)


def full(text: str) -> str:
    """As the engine says it."""
    return text


def short(text: str) -> str:
    """Without what the action or the room says anyway, for a small policy."""
    return LEADS.sub(lambda found: "Y" if found[0].endswith("y") else "", text)


VIEWS = {"full": full, "short": short}


def fingerprint(game: Mapping[str, Any]) -> str:
    """16 hex digits of all that makes a game this game: rules, wording, start state and goal."""
    parts = [game["pddl_domain"], game["grammar"], game["pddl_problem"]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_goal(instruction: str) -> tuple[str, str, str]:
    """(type, object kind, target kind or lamp). ValueError for an instruction that is none of ALFWorld's templates."""
    for name, pattern in GOALS:
        found = re.fullmatch(pattern, instruction.strip().rstrip("."))
        if found:
            kind, target = [word for word in found.groups() if word]
            return name, kind, target
    raise ValueError(f"not a goal of ALFWorld: {instruction!r}")


def things(text: str) -> list[str]:
    """"mug 1", "cabinet 2", ... in the order of a listing."""
    return THING.findall(text)
