"""The vocabulary. Read this file first.

    Task      one instruction in the world, judged by the engine's unit tests
    Scenario  three tasks of one kind (same sub-routines, other people and values); SGC is scored on scenarios
    Chain     K tasks of one scenario, played in order by one agent that carries a skill library along
    Turn      one reply of the policy (a short thought and one Python block) and what the world answered
    Segment   one training sequence: prompt + everything sampled and observed in one task
    Episode   one task played to its end
    ChainRun  one copy of a chain played to its end; the G copies of a chain form a group

Shape suffixes of tensors and nested lists: ``_C`` chains of a step, ``_G`` copies in a group, ``_K`` position in the
chain, ``_T`` tokens, ``_B`` sequences of a batch (= C*K*G, position-major inside a chain), ``_S`` training seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class StopReason(StrEnum):
    """Why an episode ended. Only ``env_failure`` is not the policy's doing: it is never scored."""

    completed = "completed"  # the agent called complete_task
    no_code = "no_code"  # a reply without a Python block: the episode ends with the penalty
    max_turns = "max_turns"  # the turn budget is used up
    max_tokens = "max_tokens"  # a reply hit the length limit: its block is cut and is not executed
    context_full = "context_full"  # the next reply would not fit into the context limit
    timeout = "timeout"  # agent code ran past its limit and was killed
    died = "died"  # agent code took its own process down
    env_failure = "env_failure"  # our fault (engine, disk, judge): the copy leaves its group


@dataclass(frozen=True)
class Chain:
    """K task ids in playing order, of one scenario; chains without labels carry the scenario of their first task."""

    scenario_id: str
    task_ids: tuple[str, ...]


@dataclass
class Turn:
    """One reply and the world's answer. ``token_ids`` are the sampled ids, never re-tokenised text."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish: str  # "stop" (sampled an end token) or "length"
    code: str | None = None
    observation: str = ""
    error: str | None = None  # last line of the traceback; None when the block ran clean
    seconds: float = 0.0  # spent in the engine
    trained: bool = True  # False: shown as context, masked out of the loss (a demonstration's mistake)


@dataclass
class Segment:
    """One training sequence. ``own_mask_T`` is 1 on tokens that the policy sampled, 0 on observations and templates."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    own_mask_T: list[int] = field(default_factory=list)
    logprobs_T: list[float] = field(default_factory=list)
    position: int = 0

    def append(self, ids: list[int], *, own: bool, logprobs: list[float] | None = None) -> None:
        """Afterwards the sequence ends in ``ids``; the three lists stay equally long."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} token ids but {len(logprobs)} log-probabilities")
        self.completion_ids += ids
        self.own_mask_T += [int(own)] * len(ids)
        self.logprobs_T += logprobs if logprobs is not None else [0.0] * len(ids)

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.completion_ids

    @property
    def generated(self) -> int:
        """Number of sampled tokens, |o| in the paper."""
        return sum(self.own_mask_T)


@dataclass
class Episode:
    """One task played. ``fraction`` is passed/total unit tests (the paper's r), None after an environment failure."""

    task_id: str
    scenario_id: str
    position: int
    instruction: str
    segment: Segment
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = StopReason.max_turns
    fraction: float | None = None
    success: bool = False
    failures: tuple[str, ...] = ()
    skills_shown: tuple[str, ...] = ()  # loaded into the shell and visible in the prompt
    skills_dropped: tuple[str, ...] = ()  # stored, but failed to load in this task's world
    skills_made: tuple[str, ...] = ()  # saved in this task (new or overwritten)
    skills_called: tuple[str, ...] = ()  # stored skills that a clean block of this task calls (see skills.DETECTORS)

    @property
    def steps(self) -> int:
        """Interactions with the world: replies that carried a block."""
        return sum(turn.code is not None for turn in self.turns)

    @property
    def scored(self) -> bool:
        return self.stop is not StopReason.env_failure


@dataclass
class ChainRun:
    """One copy of a chain. ``libraries[k]`` is the library (name -> source) after task k; it is this copy's own."""

    chain: Chain
    copy: int
    episodes: list[Episode] = field(default_factory=list)
    libraries: list[dict[str, str]] = field(default_factory=list)
