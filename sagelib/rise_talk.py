"""A conversation of `rise_task` or a prompt of the curator, read back from its text: what a rule player gets to see."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Talk:
    """``pages[i]`` is what ``actions[i]`` led to. ``writing``: the document is asked for, not an action."""

    document: str
    instruction: str
    start: str
    actions: tuple[str, ...]
    pages: tuple[str, ...]
    writing: bool


def read_talk(text: str) -> Talk:
    """The whole conversation, decoded with its special tokens (see `rise_prompts` for its parts)."""
    task = re.search(r"Task: ([^\n]*)(?:\n(.*?))?(?=\n\n|<\|im_end\|>)", text, re.DOTALL)
    document = (re.findall(r"Document:\n(.*?)\n\nTask: ", text, re.DOTALL) or [""])[0]
    history = re.findall(r"Action: ([^\n]*)\nObservation: (.*?)(?=\nAction: |\n\nOutcome: |<\|im_end\|>)", text, re.DOTALL)
    said = text.partition("<|im_start|>assistant")[2]
    actions = [action for action, _ in history] + re.findall(r"<action>(.*?)</action>", said)
    pages = [page for _, page in history] + re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", said, re.DOTALL)
    return Talk(document, task[1], task[2] or "", tuple(actions), tuple(pages), "\nWrite the skill." in text)
