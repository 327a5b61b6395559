"""More values for the examples of supervised fine-tuning: what stands for the user's own words becomes something else.

A small model copies only tokens that it has seen copied, from as far away as it has seen them copied. The code of a
demonstration does not depend on its value, so the value can be replaced wherever it stands: in the task, in what the
shell showed, in the call. New words are made of the tokenizer's own pieces: each piece gets copied somewhere.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

LITERAL = re.compile(r'"([^"\n]+)"|(?<=[(=])(\d+)(?=\))')  # the arguments of a call, as agent code writes them
LONGEST_PIECE = 8


class Values:
    """Draws values that look like a given one: capitals stay capitals, digits digits, everything else as it is."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.rng = random.Random(seed)
        words = [tokenizer.decode([i]) for i in range(len(tokenizer))]
        words = [w for w in words if len(w) < LONGEST_PIECE]
        self.small = [w for w in words if re.fullmatch("[a-z]+", w)]
        self.capital = [w for w in words if re.fullmatch("[A-Z][a-z]*", w)]

    def like(self, value: str) -> str:
        """Another value of the same shape."""
        return re.sub(r"[A-Za-z]+|\d+", self._part, value)

    def _part(self, match: re.Match) -> str:
        part = match[0]
        if part.isdigit():
            return self.rng.choice("123456789") + "".join(self.rng.choices("0123456789", k=len(part) - 1))
        inner = self.rng.choices(self.small, k=self.rng.randint(0, 2))
        return "".join([self.rng.choice(self.capital if part[0].isupper() else self.small), *inner])


def other_pairs(pairs: Sequence[dict[str, Any]], values: Values) -> list[dict[str, Any]]:
    """Each pair that repeats a text value, once more with another one."""
    made = []
    for pair in pairs:
        old = pair.get("value")
        if isinstance(old, str):
            new = values.like(old)
            made.append({key: part.replace(old, new) if key not in ("app", "kind") else part for key, part in pair.items()})
    return made


def other_demonstration(row: dict[str, Any], values: Values) -> dict[str, Any]:
    """The demonstration with other values: every argument that its calls copied from the task or from an observation."""
    skills, task = _split(row["prompt"])
    turns = [dict(turn) for turn in row["turns"]]
    copied: dict[str, str] = {}
    for turn in turns:
        for match in LITERAL.finditer(_call(turn["text"])):
            old = match[1] or match[2]
            if re.search(_exactly(old), task + "\n" + "\n".join(t["observation"] for t in turns)):
                copied.setdefault(old, values.like(old))

    def renew(text: str) -> str:
        pattern = "|".join(_exactly(old) for old in sorted(copied, key=len, reverse=True))
        return re.sub(pattern, lambda match: copied[match[0]], text) if copied else text

    for turn in turns:
        thought, code, call = _parts(turn["text"])
        turn["text"], turn["observation"] = renew(thought) + code + renew(call), renew(turn["observation"])
    return {**row, "prompt": skills + renew(task), "turns": turns}


def _exactly(value: str) -> str:
    return rf"(?<![\w.]){re.escape(value)}(?!\w)"


def _split(prompt: str) -> tuple[str, str]:
    """(skills, task): only the task's words are the user's."""
    cut = prompt.rindex("Task: ")
    return prompt[:cut], prompt[cut:]


def _parts(text: str) -> tuple[str, str, str]:
    """(thought, definitions, call): a demonstration's block ends with one call on one line."""
    thought, rest = text.split("\n", 1)
    body = rest.removesuffix("\n```")
    cut = body.rindex("\n") + 1
    return thought + "\n", body[:cut], body[cut:] + rest[len(body):]


def _call(text: str) -> str:
    return _parts(text)[2]
