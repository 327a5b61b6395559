"""Intervals. Training seeds are resampled, and families of scenarios: scenarios of one family share their code."""

from __future__ import annotations

import numpy as np
import pandas as pd

DRAWS = 10_000


def scenario_scores(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Per (family, scenario) and seed (columns): percent of tasks solved (``tgc``), of plays in which all are (``sgc``),
    else a mean.

    ``rows``: episodes of ONE method and split with columns seed, family, scenario_id, play, success, steps, tokens, scored.
    A play with a task that was not scored does not count for ``sgc``.
    """
    grouped = rows[rows["scored"]].groupby(["family", "scenario_id", "seed"])
    if metric == "tgc":
        scores = 100.0 * grouped["success"].mean()
    elif metric == "sgc":
        played = rows.groupby(["family", "scenario_id", "seed", "play"])
        solved, whole = played["success"].all(), played["scored"].all()
        scores = 100.0 * solved[whole].groupby(["family", "scenario_id", "seed"]).mean()
    elif metric in ("steps", "tokens"):
        scores = grouped[metric].mean()
    else:
        raise ValueError(f"metric {metric!r} is not one of tgc, sgc, steps, tokens")
    return scores.unstack("seed").sort_index()


def bootstrap(scores: pd.DataFrame, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): 95% percentile interval, resampling seeds and families with replacement (crossed).

    ``scores`` as from `scenario_scores`: the first index level is the family. Scenarios without every seed are left out.
    """
    scores = scores.dropna()
    if scores.empty:
        raise ValueError("no scenario was scored with every seed")
    values_NS = scores.to_numpy(dtype=float)
    family_N = pd.factorize(scores.index.get_level_values(0))[0]
    f, s = family_N.max() + 1, values_NS.shape[1]
    rng = np.random.default_rng(seed)
    counts_DF = rng.multinomial(f, np.full(f, 1 / f), draws)
    counts_DS = rng.multinomial(s, np.full(s, 1 / s), draws)
    sums_FS = np.stack([np.bincount(family_N, column, minlength=f) for column in values_NS.T], axis=1)
    sizes_F = np.bincount(family_N, minlength=f)
    means_D = np.einsum("df,fs,ds->d", counts_DF, sums_FS, counts_DS / s) / (counts_DF @ sizes_F)
    return float(values_NS.mean()), float(np.quantile(means_D, 0.025)), float(np.quantile(means_D, 0.975))


def paired_difference(a: pd.DataFrame, b: pd.DataFrame, **options) -> tuple[float, float, float]:
    """`bootstrap` of a - b on the scenarios and seeds that both have."""
    seeds = [c for c in a.columns if c in b.columns]
    index = a.index.intersection(b.index)
    if not seeds or index.empty:
        raise ValueError("the two methods share no seed or no scenario; evaluate both on the same panel and seeds")
    return bootstrap(a.loc[index, seeds] - b.loc[index, seeds], **options)
