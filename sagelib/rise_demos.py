"""Demonstrations of SkillRise: rule players go through the same loop as the policy, and its training rows are what is imitated.

Players differ in style (`rise_worlds.Style`): some act without looking, some ignore the document, half of the curators write down
general advice in place of what they saw. Imitation reproduces the mixture; what pays is for reinforcement learning to find out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sagelib.policy import ScriptedPolicy
from sagelib.prompts import ChatFormat
from sagelib.rise_credit import RiseCredit
from sagelib.rise_document import Carry
from sagelib.rise_loop import play_trials
from sagelib.rise_prompts import Budgets
from sagelib.rise_rows import training_rows
from sagelib.rise_types import LoopSettings, Trial
from sagelib.rise_worlds import Style
from sagelib.rollout import World
from sagelib.sft import IGNORED, Example
from sagelib.tiny import train_tokenizer
from sagelib.types import Chain, Segment

Reply = Callable[[str, Style], str]   # a rule player of some world: its reply to a conversation
WIDE = Budgets(max_context=40_000, reply_tokens=400, writer_tokens=2000, document_tokens=1500, trajectory_tokens=30_000)


@dataclass(frozen=True)
class Mixture:
    """Shares of the styles: attempts without looking, attempts without the document, documents of general advice."""

    hasty: float = 0.0
    unread: float = 0.0
    general: float = 0.0

    def draw(self, rng: random.Random) -> Style:
        hasty, unread, general = rng.random() < self.hasty, rng.random() < self.unread, rng.random() < self.general
        return Style(careful=not hasty, document=not unread, notes=not general)


def players(format: ChatFormat, reply_to: Reply, mixture: Mixture, seed: int) -> ScriptedPolicy:
    """A policy whose replies are the rule players'. The first message and the seed decide on the style of a conversation."""

    def script(row: int, turn: int, ids: Sequence[int]) -> str:
        talk = format.tokenizer.decode(ids)
        first = talk.partition("<|im_start|>assistant")[0]
        return reply_to(talk, mixture.draw(random.Random(f"{seed} {first}")))

    return ScriptedPolicy(format, script)


def demonstrate(chains: Sequence[Chain], world: World, format: ChatFormat, settings: LoopSettings, reply_to: Reply,
                mixture: Mixture, seed: int) -> list[Trial]:
    """One trial of each sequence, failures included: a curator has to learn from them."""
    return play_trials(chains, 1, players(format, reply_to, mixture, seed), world, format, settings, seed)


def examples(trials: Sequence[Trial]) -> list[Example]:
    """The training rows of both roles, loss on the players' own tokens. ValueError for a row that the loop calls invalid."""
    rows = training_rows(trials, RiseCredit())
    for row in rows:
        if row.score.invalid:
            raise ValueError(f"a reply of {row.score.key} holds no action or document, or was cut off: the budgets are too small")
    return [{"input_ids": row.segment.ids, "labels": _labels(row.segment)} for row in rows]


def _labels(segment: Segment) -> list[int]:
    """The ids of the player's own tokens, IGNORED elsewhere."""
    own = zip(segment.completion_ids, segment.own_mask_T, strict=True)
    return [IGNORED] * len(segment.prompt_ids) + [i if mine else IGNORED for i, mine in own]


def texts(trials: Iterable[Trial], format: ChatFormat) -> list[str]:
    """What a tokenizer is trained on: everything that was read and said, without the special tokens."""
    found = []
    for row in training_rows(list(trials), RiseCredit()):
        found += [part for part in re.split(r"<\|\w+\|>", format.tokenizer.decode(row.segment.ids)) if part]
    return found


def tokenizer_for(chains: Sequence[Chain], world: World, max_turns: int, reply_to: Reply, mixture: Mixture, vocabulary: int,
                  seed: int):
    """A tokenizer of these sequences' texts, with and without a document; they are played in bytes first."""
    byte_format = ChatFormat(train_tokenizer(["user\nassistant\n"], 259))
    seen = []
    for carry in (Carry.document, Carry.none):
        seen += demonstrate(chains, world, byte_format, LoopSettings(carry, WIDE, max_turns), reply_to, mixture, seed)
    return train_tokenizer(texts(seen, byte_format), vocabulary)
