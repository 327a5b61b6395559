"""Evaluation as in the paper: the three tasks of a scenario in order, one library growing through them, policy frozen.
One row per task; `scores` sums them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from sagelib.policy import Policy
from sagelib.prompts import ChatFormat
from sagelib.rollout import RolloutSettings, World, rollout
from sagelib.types import Chain, ChainRun, Episode

COLUMNS = [
    "scenario_id",
    "play",
    "family",
    "task_id",
    "position",
    "scored",
    "success",
    "fraction",
    "stop",
    "steps",
    "tokens",
    "skills_shown",
    "skills_called",
    "skills_made",
    "replies_with_error",
]


def evaluate(
    policy: Policy,
    world: World,
    format: ChatFormat,
    chains: Sequence[Chain],
    families: dict[str, str],
    settings: RolloutSettings,
    *,
    seed: int,
    plays: int = 1,
    batch: int = 20,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, list[ChainRun]]:
    """Play each scenario ``plays`` times, every time from an empty library. Returns one row per task (`COLUMNS`) and the
    runs, in the order of ``chains``, the plays of a scenario adjacent. ``batch``: scenario plays side by side.

    The result depends on ``seed`` and ``batch`` (sampling shares one random stream per batch), not on timing.
    """
    runs: list[ChainRun] = []
    size = max(1, batch // plays)
    for start in range(0, len(chains), size):
        part = chains[start : start + size]
        runs += rollout(part, plays, policy, world, format, settings, seed=seed * 1_000_003 + start * 101)
        progress(len(runs), plays * len(chains))
    rows = [episode_row(e, families[e.scenario_id], run.copy) for run in runs for e in run.episodes]
    return pd.DataFrame(rows, columns=COLUMNS), runs


def episode_row(episode: Episode, family: str, play: int = 0) -> dict:
    return {
        "scenario_id": episode.scenario_id,
        "play": play,
        "family": family,
        "task_id": episode.task_id,
        "position": episode.position,
        "scored": episode.scored,
        "success": episode.success,
        "fraction": episode.fraction,
        "stop": str(episode.stop),
        "steps": episode.steps,
        "tokens": episode.segment.generated,
        "skills_shown": len(episode.skills_shown),
        "skills_called": len(episode.skills_called),
        "skills_made": len(episode.skills_made),
        "replies_with_error": sum(t.error is not None for t in episode.turns),
    }
