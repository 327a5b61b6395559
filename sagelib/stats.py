"""Intervals. The unit of replication is the training seed; scenarios are resampled too (tasks of one belong together)."""

from __future__ import annotations

import numpy as np
import pandas as pd

DRAWS = 10_000


def scenario_scores(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Per scenario (rows) and seed (columns): percent of tasks solved (``tgc``), 100 if all are (``sgc``), else a mean.

    ``rows``: episodes of ONE method and split with columns seed, scenario_id, success, steps, tokens, scored.
    """
    rows = rows[rows["scored"]]
    grouped = rows.groupby(["scenario_id", "seed"])
    if metric == "tgc":
        scores = 100.0 * grouped["success"].mean()
    elif metric == "sgc":
        scores = 100.0 * grouped["success"].all()
    elif metric in ("steps", "tokens"):
        scores = grouped[metric].mean()
    else:
        raise ValueError(f"metric {metric!r} is not one of tgc, sgc, steps, tokens")
    return scores.unstack("seed").sort_index()


def bootstrap(scores: pd.DataFrame, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): 95% percentile interval, resampling seeds and scenarios with replacement (crossed)."""
    values_NS = scores.to_numpy(dtype=float)
    if np.isnan(values_NS).any():
        scores = scores.dropna()
        values_NS = scores.to_numpy(dtype=float)
    if values_NS.size == 0:
        raise ValueError("no scenario was scored with every seed")
    rng, (n, s) = np.random.default_rng(seed), values_NS.shape
    seeds_DS = rng.integers(0, s, (draws, s))
    counts_DN = rng.multinomial(n, np.full(n, 1 / n), draws)
    weights_DS = np.apply_along_axis(np.bincount, 1, seeds_DS, minlength=s) / s
    means_D = np.einsum("dn,ns,ds->d", counts_DN / n, values_NS, weights_DS, optimize=True)
    return float(values_NS.mean()), float(np.quantile(means_D, 0.025)), float(np.quantile(means_D, 0.975))


def paired_difference(a: pd.DataFrame, b: pd.DataFrame, **options) -> tuple[float, float, float]:
    """`bootstrap` of a - b on the scenarios and seeds that both have."""
    seeds = [c for c in a.columns if c in b.columns]
    index = a.index.intersection(b.index)
    if not seeds or index.empty:
        raise ValueError("the two methods share no seed or no scenario; evaluate both on the same panel and seeds")
    return bootstrap(a.loc[index, seeds] - b.loc[index, seeds], **options)
