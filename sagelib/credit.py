"""Credit: from a finished chain to one return per task, and from the returns of a group to advantages.

Each credit function is pure: outcomes ``r_K`` (None = not scored), use flags ``used_K`` -> returns ``R_K``.
``used_K[k]`` is True when task k called a skill that was generated in an earlier task of the chain.
Formulas and golden vectors: SAGE (arXiv 2512.17102), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sagelib.types import ChainRun, Episode, StopReason

Outcome = float | None
CreditFunction = Callable[[Sequence[Outcome], Sequence[bool], Sequence[set[int]]], list[Outcome]]

NO_CODE_PENALTY = -1.0


def chain_returns(run: ChainRun, credit_function: CreditFunction) -> list[Outcome]:
    """Returns R_K of one finished chain. A reply without code costs `NO_CODE_PENALTY` in place of r."""
    r_K = [_reward(e) for e in run.episodes]
    makers_K = [_makers(run, k) for k in range(len(run.episodes))]
    return credit_function(r_K, [bool(m) for m in makers_K], makers_K)


def _reward(episode: Episode) -> Outcome:
    if episode.stop is StopReason.no_code:
        return NO_CODE_PENALTY
    return episode.fraction


def _makers(run: ChainRun, k: int) -> set[int]:
    """Positions before k that made (last) a skill which task k called."""
    makers = set()
    for name in run.episodes[k].skills_called:
        made = [j for j in range(k) if name in run.episodes[j].skills_made]
        makers.update(made[-1:])
    return makers


def outcome(r_K: Sequence[Outcome], used_K: Sequence[bool], makers_K: Sequence[set[int]]) -> list[Outcome]:
    """R^k = r^k."""
    return list(r_K)


def skill_integrated(r_K: Sequence[Outcome], used_K: Sequence[bool], makers_K: Sequence[set[int]]) -> list[Outcome]:
    """R^1 = r^1 + 1[r^1=1] 1[r^2=1] 1_skill ; R^2 = r^2 + 1[r^2=1] 1_skill (bonus weight exactly 1).

    For longer chains: a task earns one usage bonus when it is solved and used an earlier skill, and one generation
    bonus when it is solved and a later solved task used a skill made here (``makers_K[j]``: positions whose skills j
    called). With K = 2 this is the paper's formula. A generation bonus is not multiplied by the number of users.
    """
    solved = [r is not None and r == 1 for r in r_K]
    returns: list[Outcome] = []
    for k, r in enumerate(r_K):
        if r is None:
            returns.append(None)
            continue
        usage = solved[k] and used_K[k]
        generation = solved[k] and any(solved[j] and k in makers_K[j] for j in range(k + 1, len(r_K)))
        returns.append(r + float(usage) + float(generation))
    return returns


def chain_based(r_K: Sequence[Outcome], used_K: Sequence[bool], makers_K: Sequence[set[int]]) -> list[Outcome]:
    """R^k = r^k + 1[all tasks of the chain solved], whether or not skills were used.

    The paper words it as an equal extra when the whole chain succeeds; the formula is our reading.
    """
    bonus = float(all(r is not None and r == 1 for r in r_K))
    return [None if r is None else r + bonus for r in r_K]


CREDIT: dict[str, CreditFunction] = {
    "skill_integrated": skill_integrated,
    "outcome": outcome,
    "chain": chain_based,
}


def group_advantages(returns_G: Sequence[Outcome]) -> list[float]:
    """A_i = R_i - mean_j R_j over the scored members of one (chain, position) group; no division by the std.

    Members that were not scored get 0 and do not move the mean; a group with fewer than two scored members gives 0.
    """
    scored = [r for r in returns_G if r is not None]
    if len(set(scored)) < 2:  # also for equal returns: the float mean of 3 x 0.1 is not 0.1, and their credit must be 0
        return [0.0] * len(returns_G)
    mean = sum(scored) / len(scored)
    return [0.0 if r is None else r - mean for r in returns_G]
