"""What is carried from task to task as text: the skill document, or remarks. Reading it out of replies, and its budget.

    <action>go to desk 1</action>     one step of the solver; the first one in a reply counts
    <skill> ... </skill>              the whole revised document; the last one in a reply counts
    <remark> ... </remark>            a reflection (the LaMer baseline): appended to the earlier ones, rewrites nothing

A reply without its tag changes nothing: the old document stays, and the row is marked invalid. All sizes are tokens of the
policy's own tokenizer: the released code cuts documents at 4000 characters, more than its 1024-token reply can hold.
"""

from __future__ import annotations

import re
from enum import StrEnum

from sagelib.prompts import ChatFormat


class Carry(StrEnum):
    """What a trial carries from one task to the next."""

    document = "document"      # SkillRise: rewritten by the policy after each task
    reflection = "reflection"  # one remark after each task
    none = "none"              # nothing: the no-curation baseline
    skills = "skills"          # SAGE's library of functions, where the world runs code
    both = "both"              # library and document

    @property
    def tag(self) -> str | None:
        """Tag of what the policy writes after a task; None where it writes nothing."""
        return {"document": "skill", "both": "skill", "reflection": "remark"}.get(self.value)

    @property
    def library(self) -> bool:
        return self in (Carry.skills, Carry.both)


def parse_action(text: str) -> str | None:
    """The first <action>, stripped; None when there is none or it is empty."""
    found = re.search(r"<action>(.*?)</action>", text, re.DOTALL)
    return (found[1].strip() or None) if found else None


def parse_written(text: str, tag: str) -> str | None:
    """The last <tag> of a reply, stripped; None when there is none or it is empty."""
    found = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL)
    return (found[-1].strip() or None) if found else None


def updated(carry: Carry, old: str, written: str, format: ChatFormat, limit: int) -> str:
    """What is carried on: the document is replaced, remarks are appended; at most ``limit`` tokens of it.

    A document that is too long keeps its beginning (its writer puts first what matters), remarks keep the newest.
    """
    if carry is not Carry.reflection:
        return first_lines(written, format, limit)
    remarks = [*old.splitlines(), "- " + " ".join(written.split())]
    while len(remarks) > 1 and len(format.encode("\n".join(remarks))) > limit:
        del remarks[0]
    return first_lines("\n".join(remarks), format, limit)


def first_lines(text: str, format: ChatFormat, limit: int) -> str:
    """As many whole lines from the top as fit into ``limit`` tokens; of a first line that is too long, what fits."""
    if len(format.encode(text)) <= limit:
        return text
    lines = text.splitlines()
    low, high = 0, len(lines)   # invariant: `low` lines fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(format.encode("\n".join(lines[:middle]))) <= limit else (low, middle)
    return "\n".join(lines[:low]).rstrip() if low else _first_tokens(lines[0], format, limit)


def _first_tokens(line: str, format: ChatFormat, limit: int) -> str:
    """A cut may fall inside a character, and what is left may be encoded in more tokens than it was cut from."""
    keep = limit
    while keep > 0:
        text = format.decode(format.encode(line)[:keep]).rstrip("\ufffd").rstrip()
        if len(format.encode(text)) <= limit:
            return text
        keep -= 1
    return ""
