"""The vocabulary of SkillRise, on top of `types`.

    Sequence  K tasks of one family in playing order (a `Chain` to the rollout)
    Attempt   one task played by the solver; an `Episode` whose conversation may take several training rows
    Curation  what the same policy wrote after a task, as the curator
    Trial     one copy of a sequence played to its end; the G copies of a sequence are compared with each other
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sagelib.rise_document import Carry
from sagelib.rise_prompts import Budgets
from sagelib.types import ChainRun, Episode, Segment


@dataclass(frozen=True)
class LoopSettings:
    """What a trial is like. ``action``: the world takes a command in <action> tags, or a Python block."""

    carry: Carry = Carry.document
    budgets: Budgets = field(default_factory=Budgets)
    max_turns: int = 10
    action: Literal["tag", "code"] = "tag"
    rules: bool = False  # the long instructions, for a pre-trained model

    def __post_init__(self) -> None:
        if self.carry.library and self.action != "code":
            raise ValueError(f"carry = {self.carry.value!r} keeps Python functions, but this world takes actions in tags")


@dataclass
class Attempt(Episode):
    """One task played. ``segment`` is the last training row, ``earlier`` those before it; ``invalid`` marks each row."""

    earlier: list[Segment] = field(default_factory=list)
    invalid: list[bool] = field(default_factory=lambda: [False])
    turns_dropped: int = 0
    document_cut: bool = False

    @property
    def segments(self) -> list[Segment]:
        return [*self.earlier, self.segment]


@dataclass
class Curation:
    """What was written after one task. ``before`` and ``after`` are what is carried."""

    position: int
    segment: Segment
    text: str
    valid: bool
    before: str
    after: str


@dataclass
class Trial(ChainRun):
    """One copy of a sequence. ``documents[k]`` is what task k was shown, ``curations[k]`` what was written after it."""

    documents: list[str] = field(default_factory=list)
    curations: list[Curation | None] = field(default_factory=list)
