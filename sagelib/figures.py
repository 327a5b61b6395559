"""Figures for a paper: one colour per method, vector + PNG + the data, byte-identical when drawn again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd

from sagelib import stats

METHODS = {"base": "Base", "sft": "SFT", "sft_grpo": "SFT+GRPO", "sage": "SAGE"}
PALETTE = {"base": "#8c8c8c", "sft": "#4c72b0", "sft_grpo": "#dd8452", "sage": "#55a868"}
SPLITS = {"test_normal": "test-normal", "test_challenge": "test-challenge", "dev": "dev"}
METRICS = {"tgc": "TGC (%)", "sgc": "SGC (%)", "steps": "steps per task", "tokens": "sampled tokens per task"}
PAGE_WIDTH = 6.75  # inches


def style() -> None:
    """Fonts that editors accept (type 42), and nothing random in the files."""
    matplotlib.rcParams.update(
        {
            "pdf.fonttype": 42,
            "ps.fonttype": 42,
            "svg.hashsalt": "sagelib",
            "font.size": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.dpi": 150,
            "savefig.dpi": 200,
            "legend.frameon": False,
        }
    )


def save(
    figure: plt.Figure, name: str, data: pd.DataFrame, *, directory: Path, run_ids: Sequence[str], command: str
) -> list[Path]:
    """Write name.{pdf,png,csv,json}; the JSON names the command and the runs. Returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.{kind}" for kind in ("pdf", "png", "csv", "json")]
    figure.savefig(paths[0], metadata={"CreationDate": None, "Creator": None, "Producer": None}, bbox_inches="tight")
    figure.savefig(paths[1], metadata={"Software": None}, bbox_inches="tight")
    save_table(data, name, directory=directory, run_ids=run_ids, command=command)
    return paths


def read_episodes(path: Path) -> pd.DataFrame:
    """An evaluation's episodes.csv. Ids stay text: hexadecimal ones such as 1836e74557 would be read as numbers."""
    return pd.read_csv(path, dtype=dict.fromkeys(("run_id", "scenario_id", "task_id"), str))


def save_table(table: pd.DataFrame, name: str, *, directory: Path, run_ids: Sequence[str], command: str) -> None:
    """name.csv, and name.json with the command and the runs that made it."""
    directory.mkdir(parents=True, exist_ok=True)
    table.to_csv(directory / f"{name}.csv", index=False, float_format="%.6g")
    (directory / f"{name}.json").write_text(
        json.dumps({"command": command, "run_ids": sorted(set(run_ids))}, indent=1) + "\n"
    )


def publish(source: Path, target: Path) -> list[Path]:
    """Copies of all figures and tables of a run's results in ``target``, over older ones. Returns their paths."""
    target.mkdir(parents=True, exist_ok=True)
    names = sorted(p.name for p in source.iterdir() if p.suffix in (".pdf", ".png", ".csv", ".json"))
    return [Path(shutil.copyfile(source / name, target / name)) for name in names]


def main_figure(episodes: pd.DataFrame, split: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Bars with 95% intervals: TGC, SGC, steps, tokens of each method on one split."""
    style()
    methods = [m for m in METHODS if m in set(episodes["method"])]
    figure, axes = plt.subplots(1, len(METRICS), figsize=(PAGE_WIDTH, 1.9))
    rows = []
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        for x, method in enumerate(methods):
            part = episodes[(episodes["method"] == method) & (episodes["split"] == split)]
            scores = stats.scenario_scores(part, metric)
            mean, low, high = stats.bootstrap(scores)
            axis.bar(x, mean, color=PALETTE[method], width=0.7)
            axis.errorbar(x, mean, [[mean - low], [high - mean]], color="black", lw=0.8, capsize=2)
            rows.append(
                {
                    "split": split,
                    "method": method,
                    "metric": metric,
                    "mean": mean,
                    "low": low,
                    "high": high,
                    "n_seeds": scores.shape[1],
                    "n_scenarios": scores.shape[0],
                }
            )
        axis.set_xticks(range(len(methods)), [METHODS[m] for m in methods], rotation=35, ha="right")
        axis.set_title(label, fontsize=8)
    figure.tight_layout(w_pad=1.0)
    data = pd.DataFrame(rows)
    n = data.iloc[0]
    figure.suptitle(
        f"{SPLITS[split]}: {n.n_scenarios} scenarios, {n.n_seeds} seed(s), 95% intervals over families and seeds",
        fontsize=8,
        y=1.06,
    )
    return figure, data


def study_figure(episodes: pd.DataFrame, cells: Sequence[str], split: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Points with 95% intervals, a row per cell (column `cell` of ``episodes``), a panel per metric; a gap is marked "no run"."""
    style()
    figure, axes = plt.subplots(1, len(METRICS), figsize=(PAGE_WIDTH, 0.7 + 0.22 * len(cells)), sharey=True)
    rows = []
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        for y, cell in enumerate(cells):
            part = episodes[(episodes["cell"] == cell) & (episodes["split"] == split)]
            row = {"split": split, "cell": cell, "metric": metric} | _interval(part, metric)
            rows.append(row)
            if row["n_seeds"] == 0:
                where = {"transform": axis.get_yaxis_transform(), "ha": "center", "va": "center"}   # x: share of the panel
                axis.text(0.5, y, "no run", color="#8c8c8c", fontsize=6, **where)
            else:
                _point(axis, y, row["mean"], row["low"], row["high"], PALETTE["sft"])
        axis.set_title(label, fontsize=8)
    axes[0].set_yticks(range(len(cells)), cells)
    axes[0].set_ylim(len(cells) - 0.5, -0.5)
    figure.tight_layout(w_pad=1.0)
    return figure, pd.DataFrame(rows)


def _point(axis: plt.Axes, y: int, mean: float, low: float, high: float, color: str) -> None:
    """A mean with its interval in row ``y`` of a panel."""
    axis.errorbar(mean, y, xerr=[[mean - low], [high - mean]], fmt="o", ms=3, color=color, lw=0.8, capsize=2)


def _interval(part: pd.DataFrame, metric: str) -> dict[str, float | int | None]:
    """Mean, 95% interval and sizes; n_seeds 0 and no numbers when nothing was scored."""
    scores = stats.scenario_scores(part, metric).dropna() if len(part) and part["scored"].any() else pd.DataFrame()
    if scores.empty:
        return {"mean": None, "low": None, "high": None, "n_seeds": 0, "n_scenarios": 0}
    mean, low, high = stats.bootstrap(scores)
    return {"mean": mean, "low": low, "high": high, "n_seeds": scores.shape[1], "n_scenarios": scores.shape[0]}


def learning_figure(metrics: pd.DataFrame) -> tuple[plt.Figure, pd.DataFrame]:
    """Training curves (columns method, seed, step and the plotted names): thin lines are seeds, thick ones their mean."""
    style()
    panels = {
        "solved": "training tasks solved (%)",
        "return_mean": "mean return",
        "skill_use": "later tasks using a skill (%)",
        "tokens": "sampled tokens per task",
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(PAGE_WIDTH, 1.8))
    for axis, (name, label) in zip(axes, panels.items(), strict=True):
        for method, part in metrics.groupby("method"):
            if name not in part or part[name].isna().all():
                continue
            wide = part.pivot(index="step", columns="seed", values=name).sort_index().rolling(5, min_periods=1).mean()
            axis.plot(wide.index, wide, color=PALETTE[method], lw=0.5, alpha=0.5)
            axis.plot(wide.index, wide.mean(axis=1), color=PALETTE[method], lw=1.5, label=METHODS[method])
        axis.set_title(label, fontsize=8)
        axis.set_xlabel("step")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    return figure, metrics[[c for c in ["method", "seed", "step", *panels] if c in metrics]]


def difference_table(episodes: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Paired differences a - b with 95% intervals for every split and metric."""
    rows = []
    for split in sorted(set(episodes["split"])):
        for a, b in pairs:
            for metric in METRICS:
                parts = [
                    stats.scenario_scores(episodes[(episodes["method"] == m) & (episodes["split"] == split)], metric)
                    for m in (a, b)
                ]
                mean, low, high = stats.paired_difference(*parts)
                rows.append(
                    {"split": split, "a": a, "b": b, "metric": metric, "difference": mean, "low": low, "high": high}
                )
    return pd.DataFrame(rows)


def difference_figure(differences: pd.DataFrame, split: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Points with 95% intervals of the paired differences of `difference_table` on one split; off the line at 0 is evidence."""
    style()
    data = differences[differences["split"] == split]
    pairs = list(dict.fromkeys(zip(data["a"], data["b"], strict=True)))
    figure, axes = plt.subplots(1, len(METRICS), figsize=(PAGE_WIDTH, 0.7 + 0.22 * len(pairs)), sharey=True)
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        axis.axvline(0, color="#8c8c8c", lw=0.8)
        for row in data[data["metric"] == metric].itertuples():
            _point(axis, pairs.index((row.a, row.b)), row.difference, row.low, row.high, PALETTE[row.a])
        axis.set_title(label, fontsize=8)
    axes[0].set_yticks(range(len(pairs)), [f"{METHODS[a]} \N{MINUS SIGN} {METHODS[b]}" for a, b in pairs])
    axes[0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.tight_layout(w_pad=1.0)
    return figure, data


def family_figure(families: pd.DataFrame, split: str, a: str = "sft", b: str = "sage") -> tuple[plt.Figure, pd.DataFrame]:
    """A row per family of `family_table`, most gained first: what method ``a`` solves and what ``b`` does, joined by a line."""
    style()
    data = families[families["split"] == split].assign(gain=lambda t: t[b] - t[a])
    data = data.sort_values(["gain", b, "family"], ascending=[False, False, True]).reset_index(drop=True)
    figure, axis = plt.subplots(figsize=(PAGE_WIDTH, 0.6 + 0.13 * len(data)))
    better = [PALETTE[b] if gain >= 0 else PALETTE[a] for gain in data["gain"]]
    axis.hlines(data.index, data[a], data[b], color=better, lw=1.2, alpha=0.6)
    for method, look in ((a, {"ms": 4.5, "mfc": "white"}), (b, {"ms": 3})):   # equal scores: a dot inside a ring
        axis.plot(data[method], data.index, "o", color=PALETTE[method], label=METHODS[method], **look)
    axis.set_yticks(data.index, data["family"], fontsize=6)
    axis.set_ylim(len(data) - 0.5, -0.5)
    axis.set_xlabel(f"tasks solved (%), {SPLITS[split]}")
    axis.legend(fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    figure.tight_layout()
    return figure, data


def family_table(episodes: pd.DataFrame) -> pd.DataFrame:
    """Percent of scored tasks solved over all seeds, a row per split and family, a column per method; ``n``: tasks per seed."""
    scored = episodes[episodes["scored"]]
    keys = ["split", "family"]
    solved = 100.0 * scored.groupby([*keys, "method"])["success"].mean().unstack("method")
    table = solved[[m for m in METHODS if m in solved]]
    table.insert(0, "n", episodes.groupby(keys)["task_id"].nunique())
    return table.reset_index()


def position_table(episodes: pd.DataFrame) -> pd.DataFrame:
    """TGC of the first, second and third task of a scenario: mean and 95% interval over families and seeds, the share of
    episodes that call a stored skill, and the number of episodes."""
    rows = []
    for (split, method, position), part in episodes[episodes["scored"]].groupby(["split", "method", "position"]):
        rows.append({"split": split, "method": method, "position": position + 1, "metric": "tgc"} | _interval(part, "tgc")
                    | {"skill_use": 100 * (part["skills_called"] > 0).mean(), "n_episodes": len(part)})
    return _in_order(pd.DataFrame(rows), "split", "method", "position")


def reuse_table(episodes: pd.DataFrame) -> pd.DataFrame:
    """How second and third tasks end: by whether an earlier task of the scenario was solved, and whether a skill is called.

    Counts over scenarios, plays and seeds. What is called is the policy's choice: no comparison of equal tasks.
    """
    scored = episodes[episodes["scored"]].sort_values("position")
    trial = scored.groupby(["split", "method", "seed", "scenario_id", "play"])["success"]
    before = (trial.cumsum() - scored["success"]) > 0
    later = scored.assign(earlier=before.map({True: "solved", False: "not solved"}),
                          skill=(scored["skills_called"] > 0).map({True: "called", False: "not called"}))
    later = later[later["position"] > 0]
    table = later.groupby(["split", "method", "earlier", "skill"])["success"].agg(n_episodes="size", n_solved="sum").reset_index()
    table["tgc"] = 100 * table["n_solved"] / table["n_episodes"]
    return _in_order(table, "split", "method", "earlier", "skill")


def _in_order(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Rows sorted by the columns named, "method" in the order of METHODS."""
    order = table["method"].map({method: i for i, method in enumerate(METHODS)})
    by = ["order" if column == "method" else column for column in columns]
    return table.assign(order=order).sort_values(by, ignore_index=True).drop(columns="order")


def difficulty_table(episodes: pd.DataFrame, levels: Mapping[str, int]) -> pd.DataFrame:
    """TGC by difficulty: mean and 95% interval over families and seeds, a row per split, method and level with its sizes.

    ``levels``: scenario id -> 1, 2 or 3 (`datasets.difficulties`). A level that a split lacks has no row; a method of which
    nothing was scored there has a row without numbers. KeyError for a scenario without a level.
    """
    unknown = sorted(set(episodes["scenario_id"]) - set(levels))
    if unknown:
        raise KeyError(f"no difficulty is known of scenario {unknown[0]!r} ({len(unknown)} of them): was it of another world?")
    episodes = episodes.assign(difficulty=episodes["scenario_id"].map(levels))
    rows = []
    for (split, method, level), part in episodes.groupby(["split", "method", "difficulty"]):
        rows.append({"split": split, "difficulty": level, "method": method, "metric": "tgc"} | _interval(part, "tgc")
                    | {"n_families": part["family"].nunique(), "n_tasks": part["task_id"].nunique()})
    return _in_order(pd.DataFrame(rows), "split", "difficulty", "method")
