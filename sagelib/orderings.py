"""Every ordering that SAGE's tables have, beside ours: confirmed, refuted, undecided, or not run and why.

The cell that is better in the paper stands first; equal figures (TGC of same_scenario and query_ngram: both 72.0) are no
ordering. `basis`: "stated" where the paper argues with it (as its reviews report), "table" where only its figures say so,
sometimes against its argument (SFT+GRPO samples fewer tokens than SAGE). The paper's figures are of another world
(`published.NOTE`): what is compared is the sign. Not here: how often skills are used, where sources contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pandas as pd

from sagelib import published, stats, tables
from sagelib.ablations import STUDIES
from sagelib.graph import Cell, Study
from sagelib.runs import Run

WORDS = {"tgc": "higher TGC", "sgc": "higher SGC", "steps": "fewer steps", "tokens": "fewer tokens", "used": "more skills used",
         "multi_api": "more skills of several API calls", "solved_when_used": "solves more when a skill is used"}
LOWER = ("steps", "tokens")      # where less is better
SCORES, COSTS, SKILLS = ("tgc", "sgc"), ("steps", "tokens"), ("used", "multi_api", "solved_when_used")
FEWEST = 6   # families: five are all on one side by chance in 6 % of cases (2 * 0.5 ** 5), whatever a bootstrap of them says
COLUMNS = ["study", "claim", "split", "metric", "basis", "better", "worse", "paper_better", "paper_worse", "ours_better",
           "ours_worse", "n_families", "n_scenarios", "n_seeds", "difference", "low", "high", "verdict", "reason", "command"]


@dataclass(frozen=True)
class Pair:
    """Two cells of a study that the paper's table has, too; `stated`: metrics by which it says that the first is better."""

    study: str
    first: str
    second: str
    stated: tuple[str, ...] = SCORES
    metrics: tuple[str, ...] = SCORES + COSTS
    split: str = "test_normal"


def ladder(study: str, *cells: str) -> list[Pair]:
    """Each of the cells before all that follow it."""
    return [Pair(study, *two) for two in combinations(cells, 2)]


PAIRS = [
    Pair("budget", "SAGE", "GRPO", SCORES + COSTS), Pair("budget", "SAGE", "GRPO", SCORES + COSTS, split="test_challenge"),
    Pair("budget", "SAGE", "SFT+GRPO"), Pair("budget", "GRPO", "SFT+GRPO", ()),
    *ladder("skills", "SAGE", "SFT", "Base"), Pair("skills", "SFT+GRPO", "SFT", ()),
    Pair("skills", "SAGE", "SFT", split="test_challenge"), Pair("skills", "SFT", "Base", split="test_challenge"),
    Pair("reward", "skill-integrated", "outcome"), Pair("reward", "skill-integrated", "chain"),
    Pair("reward", "outcome", "chain", ()),
    Pair("chain_length", "2", "3", SCORES + COSTS),
    *ladder("retrieval", "same_scenario", "query_ngram", "query_embedding", "skill_embedding"),
    Pair("label_free", "chains of similar instructions", "chains of one scenario", ()),
    *ladder("initialization", "SFT", "RL warm-up", "self-distillation", "Base"),
    *(Pair("library", f"{policy}, library", f"{policy}, no library", SCORES + COSTS) for policy in ("SAGE", "SFT")),
    Pair("library", "Base, library", "Base, no library", ()),
    Pair("skills", "SAGE", "SFT", SKILLS, SKILLS), Pair("library", "SAGE, library", "Base, library", SKILLS, SKILLS),
    Pair("library", "SFT, library", "Base, library", SKILLS, SKILLS),
    *(Pair("others", "SAGE", other, SCORES, SCORES, split)
      for other in published.OTHERS for split in ("test_normal", "test_challenge")),
]


def table(
    run: Run, seeds: Sequence[int], missing: Mapping[str, str], profile: str, pairs: Sequence[Pair] = PAIRS
) -> pd.DataFrame:
    """A row per pair and metric for which the paper has an ordering (`COLUMNS`); `difference` is better less worse.

    ``missing``: runs that failed, by node name (as `tables.gather` takes it). A row that was not run has no number of ours.
    """
    found, studies = SimpleNamespace(inputs=cache(run.inputs)), {study.name: study for study in STUDIES}

    @cache
    def gathered(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        return tables.gather(found, studies[name].of(profile).cells, seeds, missing)

    rows = []
    for pair in pairs:
        study = studies.get(pair.study)
        gap, command = absent(pair, study, profile, seeds)
        for metric in pair.metrics:
            row = paper_row(pair, metric)
            if row and gap:
                rows.append(row | {"verdict": "not run", "reason": gap, "command": command})
            elif row:
                cells = {cell.label: cell for cell in study.cells}
                ours = compare(found, cells, row, *gathered(pair.study))
                rows.append(row | ours | {"command": command if ours["reason"] else ""})
    return pd.DataFrame(rows, columns=COLUMNS)


def paper_row(pair: Pair, metric: str) -> dict[str, Any]:
    """What the paper has: the claim, which cell is better, both figures; empty when it has no ordering there."""
    figures = {cell: published.figure(pair.study, cell, metric, pair.split) for cell in (pair.first, pair.second)}
    if None in figures.values() or figures[pair.first] == figures[pair.second]:
        return {}
    worse, better = sorted(figures, key=figures.get, reverse=metric in LOWER)
    basis = "stated" if metric in pair.stated and better == pair.first else "table"
    return {"study": pair.study, "claim": f"{better}: {WORDS[metric]} than {worse}", "split": pair.split, "metric": metric,
            "basis": basis, "better": better, "worse": worse, "paper_better": figures[better], "paper_worse": figures[worse]}


def absent(pair: Pair, study: Study | None, profile: str, seeds: Sequence[int]) -> tuple[str, str]:
    """(why the pair cannot be compared in this profile, or "", the command that runs it, or "" when nothing does)."""
    if study is None:
        return f"nothing here plays {pair.second}", ""
    for cell in (pair.first, pair.second):
        if cell not in {c.label for c in study.cells}:
            return f"{study.notebook} has no cell {cell!r}", ""
    here = {c.label for c in study.of(profile).cells}
    left_out = [cell for cell in (pair.first, pair.second) if cell not in here]
    command = (f"./workbench reproduce --profile {'laptop' if left_out else profile} --only {study.notebook} "
               f"--seeds {','.join(map(str, seeds))}")
    return f"the profile {profile} leaves out {' and '.join(map(repr, left_out))}" if left_out else "", command


def compare(
    found: Any, cells: Mapping[str, Cell], row: Mapping[str, Any], episodes: pd.DataFrame, gaps: pd.DataFrame
) -> dict[str, Any]:
    """Our side of a row: figures, n, difference, interval, verdict; `reason` names runs that are not there."""
    names = [row["better"], row["worse"]]
    lacking = gaps[gaps["cell"].isin(names)].groupby("cell", sort=False)["reason"].agg(["first", "size"])
    reason = "; ".join(f"{cell}: {first}" + (f" (and {n - 1} more)" if n > 1 else "")
                       for cell, first, n in lacking.itertuples())
    parts = [episodes[(episodes["cell"] == name) & (episodes["split"] == row["split"])] for name in names]
    seeds = set(parts[0]["seed"]) & set(parts[1]["seed"])
    if not seeds:
        return {"verdict": "not run", "reason": reason or f"no seed has episodes of {row['split']} for both"}
    parts = [part[part["seed"].isin(seeds)] for part in parts]
    n = {"n_families": parts[0]["family"].nunique(), "n_scenarios": parts[0]["scenario_id"].nunique(), "n_seeds": len(seeds)}
    try:
        if row["metric"] in SKILLS:
            ours = skill_difference(found, [cells[name] for name in names], parts, row["metric"])
        else:
            ours = score_difference(*(stats.scenario_scores(part, row["metric"]) for part in parts))
    except ValueError as error:
        return n | {"verdict": "undecided", "reason": "; ".join(filter(None, (reason, str(error))))}
    n |= ours
    return n | {"verdict": verdict(n["low"], n["high"], row["metric"] in LOWER, n["n_families"]), "reason": reason}


def verdict(low: float, high: float, less_is_better: bool, families: int) -> str:
    """confirmed or refuted when the interval of better less worse is on one side of 0 and families are enough, else undecided."""
    if families < FEWEST or low <= 0 <= high:
        return "undecided"
    return "confirmed" if (high < 0) == less_is_better else "refuted"


def score_difference(better: pd.DataFrame, worse: pd.DataFrame) -> dict[str, float]:
    """Means over the scenarios that both have with every seed, and their difference. Frames as of `stats.scenario_scores`."""
    index = better.dropna().index.intersection(worse.dropna().index)
    better, worse = better.loc[index], worse.loc[index]
    difference, low, high = stats.paired_difference(better, worse)
    ours = {"ours_better": float(better.to_numpy().mean()), "ours_worse": float(worse.to_numpy().mean())}
    n = {"n_families": index.get_level_values(0).nunique(), "n_scenarios": len(index)}
    return ours | n | {"difference": difference, "low": low, "high": high}


def skill_difference(found: Any, cells: Sequence[Cell], parts: Sequence[pd.DataFrame], metric: str) -> dict[str, float]:
    """`used`: skills of a scenario that a later task calls; `multi_api`: % of skills; `solved_when_used`: % of tasks."""
    if metric == "solved_when_used":
        cases = [part[part["scored"] & (part["skills_called"] > 0)].assign(hit=lambda t: t["success"]) for part in parts]
    else:
        cases = [skills_of(found, cell, part) for cell, part in zip(cells, parts, strict=True)]
    if metric == "used":
        return score_difference(*(used_skills(*both) for both in zip(cases, parts, strict=True)))
    cases = [rows.assign(hit=rows["api_calls"] > 1) if metric == "multi_api" else rows for rows in cases]
    difference, low, high = stats.ratio_difference(*cases)
    ours = [100 * float(rows["hit"].mean()) for rows in cases]
    return {"ours_better": ours[0], "ours_worse": ours[1], "difference": difference, "low": low, "high": high}


def skills_of(found: Any, cell: Cell, part: pd.DataFrame) -> pd.DataFrame:
    """`tables.skill_rows` of the cell's evaluations, with seed and family, of the split and seeds of ``part``."""
    families = part.groupby("scenario_id")["family"].first()
    rows = pd.concat([tables.skill_rows(tables.find(found, cell, seed)).assign(seed=seed) for seed in sorted(set(part["seed"]))])
    rows = rows[rows["split"].isin(part["split"])]
    return rows.assign(family=rows["scenario_id"].map(families))


def used_skills(skills: pd.DataFrame, part: pd.DataFrame) -> pd.DataFrame:
    """Number of skills that a later task called, per (family, scenario) and seed, mean over its plays; 0 where there was none."""
    keys = ["family", "scenario_id", "seed"]
    tasks = part.groupby(keys)["task_id"]
    counts = skills[skills["called"] > 0].groupby(keys).size().reindex(tasks.size().index, fill_value=0)
    return (counts * tasks.nunique() / tasks.size()).unstack("seed").sort_index()
