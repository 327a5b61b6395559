"""Credit of SkillRise: from the outcomes of a trial to one return per trajectory, and from a group to advantages.

A trial plays K tasks and writes the document after each of the first K-1: 2K-1 trajectories, each of one role. For trial
n and position i = 1..K, with r_j the outcome of task j (SkillRise, arXiv 2607.26784, section on decoupled credit):

    G_solve(i, n)  = r_i(n)                                      its own task only
    G_curate(i, n) = sum_{j=i+1..K} gamma^(j-i) r_j(n),  i < K    what the document was worth afterwards
    s              = G - penalty * [row invalid]
    A              = w_role * (s - mean over the trials of the same (sequence, position, role))

A trajectory is one training row or several (where its history was shortened in between). The mean counts each trial
once, with the mean of its rows' scores: long trajectories weigh no more than short ones, and the order of the rows
changes nothing (the released code takes whichever row it meets first). A trial that an environment failure cut short has
no outcome from there on: None, advantage 0, not in any mean. A group with fewer than two scored trials gives 0 (the
released code gives its score itself).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from sagelib.config import StrictConfig

Outcome = float | None
GroupKey = tuple[str, int, str]  # (sequence, position, role)


class Role(StrEnum):
    """What a trajectory of the one policy did."""

    solve = "solve"
    curate = "curate"


class RiseCredit(StrictConfig):
    """Switches of the estimator; the defaults are the paper's."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.6            # discount per task, not per step
    solve_weight: Annotated[float, Field(ge=0)] = 1.0
    curate_weight: Annotated[float, Field(ge=0)] = 1.0
    success_reward: Annotated[float, Field(gt=0)] = 10.0        # r of a solved task; the penalties are relative to it
    reward: Literal["success", "fraction"] = "success"          # fraction: partial credit times success_reward
    solve: Literal["outcome", "skill_integrated", "chain"] = "outcome"   # the others: SAGE's bonuses, where skills are carried
    solve_penalty: Annotated[float, Field(ge=0)] = 0.5          # a row with a reply that holds no action
    curate_penalty: Annotated[float, Field(ge=0)] = 0.5         # a reply that holds no document
    scale: Literal["mean", "mean_std"] = "mean"                 # mean_std: also divided by the group's deviation
    members: Literal["trials", "rows"] = "trials"               # rows: every row counts in the mean (the released GRPO baseline)
    aggregate: Literal["token_mean", "row_mean"] = "token_mean"  # over all sampled tokens of a step, or rows first


GRPO_AS_RELEASED = RiseCredit(scale="mean_std", members="rows")  # the baseline that the released code compares with


@dataclass(frozen=True)
class Score:
    """What the estimator needs of one training row. ``value``: G without penalty, None when it was not scored."""

    key: GroupKey
    trial: int
    value: Outcome
    invalid: bool = False
    tokens: int = 1  # sampled ones


def task_reward(success: bool, fraction: Outcome, credit: RiseCredit) -> Outcome:
    """r of one task; None (fraction None) when the environment failed."""
    if fraction is None:
        return None
    return credit.success_reward * (float(success) if credit.reward == "success" else fraction)


def solve_returns(r_K: Sequence[Outcome]) -> list[Outcome]:
    """G_solve for each of the K tasks."""
    return list(r_K)


def curate_returns(r_K: Sequence[Outcome], gamma: float) -> list[Outcome]:
    """G_curate for positions 1..K-1 (none after the last task); None where a later outcome is unknown.

    K = 3: [gamma r_2 + gamma^2 r_3, gamma r_3].
    """
    returns: list[Outcome] = []
    after: Outcome = 0.0
    for r in reversed(r_K[1:]):
        after = None if after is None or r is None else gamma * (r + after)
        returns.append(after)
    return returns[::-1]


def row_score(row: Score, credit: RiseCredit) -> Outcome:
    """s = G - penalty of its role, if the row is invalid."""
    if row.value is None:
        return None
    penalty = credit.curate_penalty if row.key[2] == Role.curate else credit.solve_penalty
    return row.value - penalty * row.invalid


def advantages(rows: Sequence[Score], credit: RiseCredit) -> list[float]:
    """A of each row, in the rows' order; exactly 0 where all members of a group score the same."""
    groups: dict[GroupKey, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row.key].append(i)
    result = [0.0] * len(rows)
    for key, members in groups.items():
        scores = {i: s for i in members if (s := row_score(rows[i], credit)) is not None}
        trials: dict[int, list[float]] = defaultdict(list)
        for i, s in scores.items():
            trials[rows[i].trial].append(s)
        if len(trials) < 2 or len(set(scores.values())) < 2:
            continue
        sample = list(scores.values()) if credit.members == "rows" else [fmean(v) for v in trials.values()]
        centre, spread = fmean(sample), _spread(sample) if credit.scale == "mean_std" else 1.0
        weight = credit.curate_weight if key[2] == Role.curate else credit.solve_weight
        for i, s in scores.items():
            result[i] = weight * (s - centre) / spread
    return result


def _spread(sample: Sequence[float]) -> float:
    """Sample standard deviation plus 1e-6, as in the released code (torch.std)."""
    centre = fmean(sample)
    return math.sqrt(sum((s - centre) ** 2 for s in sample) / (len(sample) - 1)) + 1e-6


def loss_weights(rows: Sequence[Score], credit: RiseCredit) -> list[float]:
    """Share of each row in the step's loss, sum 1: loss = sum_i weight_i * mean over its tokens of the clipped term.

    ``token_mean``: rows weigh by their sampled tokens. Rows without advantage count as well: they hold tokens.
    """
    if credit.aggregate == "row_mean":
        return [1 / len(rows)] * len(rows)
    total = sum(row.tokens for row in rows)
    return [row.tokens / total if total else 0.0 for row in rows]
