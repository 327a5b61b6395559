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


def resampled(families: int, seeds: int, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each draw has each family, and each seed: (draws, families) and (draws, seeds), drawn with replacement."""
    rng = np.random.default_rng(seed)
    return (rng.multinomial(families, np.full(families, 1 / families), draws),
            rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws))


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
    counts_DF, counts_DS = resampled(f, s, draws, seed)
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


def ratio_difference(a: pd.DataFrame, b: pd.DataFrame, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float, float]:
    """(difference, low, high) in percent of two pooled shares: sum of hits over sum of cases of ``a``, less that of ``b``.

    Columns family, seed, hit (0 or 1), a row per case, such as a call of a skill. Families and seeds are resampled as in
    `bootstrap`, the same for both. ValueError when one has no case, or so few that more than a twentieth of the draws have none.
    """
    if a.empty or b.empty:
        raise ValueError("one of the two has no case")
    families, seeds = sorted({*a["family"], *b["family"]}), sorted({*a["seed"], *b["seed"]})
    counts_DF, counts_DS = resampled(len(families), len(seeds), draws, seed)
    shares = []
    for rows in (a, b):
        cells = rows.groupby(["family", "seed"])["hit"]
        hits_FS, cases_FS = (table.unstack("seed").reindex(index=families, columns=seeds).fillna(0).to_numpy(dtype=float)
                             for table in (cells.sum(), cells.size()))
        hits_D, cases_D = (np.einsum("df,fs,ds->d", counts_DF, sums, counts_DS) for sums in (hits_FS, cases_FS))
        if (cases_D == 0).mean() > 0.05:
            raise ValueError("too few cases for an interval")
        shares.append((100 * rows["hit"].mean(), 100 * hits_D / np.where(cases_D > 0, cases_D, np.nan)))
    difference_D = shares[0][1] - shares[1][1]
    return float(shares[0][0] - shares[1][0]), *(float(np.nanquantile(difference_D, q)) for q in (0.025, 0.975))
