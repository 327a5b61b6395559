"""From finished trials to training rows: what each row's ids are, which group it is compared in, and its return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sagelib import credit as sage
from sagelib.rise_credit import Outcome, RiseCredit, Role, Score, curate_returns, task_reward
from sagelib.rise_types import Trial
from sagelib.types import Segment


@dataclass(frozen=True)
class Row:
    """One training sequence: its ids, and what the estimator needs of it."""

    segment: Segment
    score: Score


def makers(trial: Trial, k: int) -> set[int]:
    """Positions before k that made (last) a stored skill which task k called."""
    found = set()
    for name in trial.episodes[k].skills_called:
        found.update([j for j in range(k) if name in trial.episodes[j].skills_made][-1:])
    return found


def trial_returns(trial: Trial, credit: RiseCredit) -> tuple[list[Outcome], list[Outcome]]:
    """(G_solve of the K tasks, G_curate of the first K-1). ``credit.solve`` other than outcome: SAGE's, on the same scale."""
    r_K = [task_reward(e.success, e.fraction if e.scored else None, credit) for e in trial.episodes]
    unit_K = [None if r is None else r / credit.success_reward for r in r_K]
    makers_K = [makers(trial, k) for k in range(len(r_K))]
    solve = sage.CREDIT[credit.solve](unit_K, [bool(m) for m in makers_K], makers_K)
    return [None if r is None else credit.success_reward * r for r in solve], curate_returns(r_K, credit.gamma)


def training_rows(trials: Sequence[Trial], credit: RiseCredit) -> list[Row]:
    """All rows in which the policy sampled something: of each trial its tasks in order, each followed by what it wrote."""
    rows = []
    for n, trial in enumerate(trials):
        solve, curate = trial_returns(trial, credit)
        for k, attempt in enumerate(trial.episodes):
            key = (trial.chain.scenario_id, k, Role.solve)
            for segment, invalid in zip(attempt.segments, attempt.invalid, strict=True):
                if segment.generated:
                    rows.append(Row(segment, Score(key, n, solve[k], invalid, segment.generated)))
            written = trial.curations[k] if k < len(trial.curations) else None
            if written is not None:
                key = (trial.chain.scenario_id, k, Role.curate)
                rows.append(Row(written.segment, Score(key, n, curate[k], not written.valid, written.segment.generated)))
    return rows
