"""Tables of studies: a row per cell, seed and split with the main table's columns; a run that is not there is a gap.

A gap keeps its row: its numbers are empty and `reason` says why. Nothing that was not measured is ever a zero.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sagelib import figures, published
from sagelib.graph import Cell, Study, node_name
from sagelib.retrieval import callees
from sagelib.runs import Run, read_metrics, read_run
from sagelib.scores import summarise

KEYS = ["cell", "method", "seed", "split", "world", "run_id"]
EPISODE_COLUMNS = ["cell", "method", "seed", "split", "world", "run_id", "scenario_id", "family", "scored", "success"]

SKILL_COLUMNS = ["split", "scenario_id", "name", "position", "characters", "api_calls", "made_solved", "called", "called_solved"]


def own_parameters(record: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a cell names: without profile and, for a run of one seed, that seed."""
    return {k: v for k, v in record["parameters"].items() if k not in ("profile", "seed")}


def fits(record: Mapping[str, Any], cell: Cell, seed: int) -> bool:
    """True when the record is the evaluation of this cell and seed: its own parameters agree, and those of all that it
    builds on, in their order (a warm-up and the training behind it are both runs of 03_train)."""
    notebook, variant = cell.path[-1]
    if (record["notebook"], record["seed"], own_parameters(record)) != (notebook, seed, variant):
        return False
    start = cell.path[0][0]
    return [(r["notebook"], own_parameters(r)) for r in record["inputs"] if r["notebook"] != start] == list(cell.path[1:-1])


def find(run: Run, cell: Cell, seed: int) -> Path | None:
    """The input run (in JupyterLab: the newest done one) that evaluates this cell with this seed, None when there is none."""
    return next((d for d in run.inputs(cell.path[-1][0]) if fits(read_run(d), cell, seed)), None)


def reason(cell: Cell, seed: int, missing: Mapping[str, str]) -> str:
    """Why a cell has no evaluation: the first of its runs that failed, in the words of the runner."""
    names = [node_name(notebook, variant, seed) for notebook, variant in cell.path[1:]]
    return next((f"{name}: {missing[name]}" for name in names if name in missing), f"no finished run of {names[-1]}")


def gather(
    run: Run, cells: Sequence[Cell], seeds: Sequence[int], missing: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All episodes of the cells' evaluations (with a column `cell`), and the gaps: cell, seed, reason."""
    parts, gaps = [], []
    for cell in cells:
        for seed in seeds:
            directory = find(run, cell, seed)
            if directory is None:
                gaps.append({"cell": cell.label, "seed": seed, "reason": reason(cell, seed, missing)})
            else:
                parts.append(figures.read_episodes(directory / "episodes.csv").assign(cell=cell.label))
    episodes = pd.concat(parts) if parts else pd.DataFrame(columns=EPISODE_COLUMNS)
    return episodes, pd.DataFrame(gaps, columns=["cell", "seed", "reason"])


def study_table(episodes: pd.DataFrame, gaps: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """The main table's columns with `cell` in front and `reason` at the end, in the order of ``cells``; gaps included."""
    rows = [dict(zip(KEYS, key, strict=True), **_scores(part)) for key, part in episodes.groupby(KEYS, sort=False)]
    order = {cell.label: i for i, cell in enumerate(cells)}
    table = pd.concat([pd.DataFrame(rows, columns=None if rows else KEYS), gaps], ignore_index=True)
    table = table.astype({"seed": int}).fillna({"reason": ""})
    return table.sort_values(["split", "cell", "seed"], key=lambda c: c.map(order) if c.name == "cell" else c, kind="stable",
                             ignore_index=True)


def _scores(part: pd.DataFrame) -> dict[str, Any]:
    """`summarise`, or the reason when every episode was an environment failure."""
    try:
        return summarise(part)
    except RuntimeError as error:
        return {"reason": str(error)}


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds per split and cell, with the number of seeds that are there."""
    measured = table[table["reason"] == ""].drop(columns=["seed", "reason"])
    grouped = measured.groupby(["split", "cell"], sort=False)
    means = grouped.mean(numeric_only=True)
    means.insert(0, "seeds", grouped.size())
    return means


def differences(episodes: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Every cell minus the reference cell, paired by scenario and seed, with 95% intervals; cells without a pair are out."""
    seeds = episodes.groupby("cell")["seed"].agg(set)
    if reference not in seeds:
        return pd.DataFrame(columns=["split", "a", "b", "metric", "difference", "low", "high"])
    pairs = [(cell, reference) for cell in episodes["cell"].unique() if cell != reference and seeds[cell] & seeds[reference]]
    return figures.difference_table(episodes.assign(method=episodes["cell"]), pairs)


def costs(run: Run, cells: Sequence[Cell], seeds: Sequence[int]) -> pd.DataFrame:
    """What training cost, per cell and seed: chains, episodes, sampled tokens (millions), seconds. Cells without RL are out."""
    rows = []
    for cell in cells:
        for seed in seeds:
            directory = find(run, cell, seed)
            for given in read_run(directory)["inputs"] if directory else ():
                if given["notebook"] == cell.path[-2][0] and len(cell.path) > 2:
                    rows.append({"cell": cell.label, "seed": seed} | training_cost(Path(given["directory"])))
    return pd.DataFrame(rows, columns=["cell", "seed", "chains", "episodes", "tokens_m", "seconds"]).astype({"seed": int})


def training_cost(directory: Path) -> dict[str, float]:
    """Read from a training run's record, metrics and episodes."""
    seen = read_run(directory)
    cfg = seen["parameters_seen"]
    played = [row for row in read_metrics(directory) if row.get("kind") == "rollout"]
    episodes = len(played) * cfg["episodes_per_step"]
    return {"chains": episodes // (cfg["chain_length"] * cfg["group_size"]), "episodes": episodes,
            "tokens_m": sum(row["tokens"] for row in played) * cfg["episodes_per_step"] / 1e6, "seconds": seen["seconds"]}


def chain_rows(directory: Path) -> Iterator[dict[str, Any]]:
    """The played chains of an evaluation, all splits, as `play.chain_record` wrote them; `split` is added."""
    for path in sorted(directory.glob("episodes_*.jsonl")):
        with open(path) as file:
            yield from (json.loads(line) | {"split": path.stem.removeprefix("episodes_")} for line in file)


def api_calls(source: str) -> int:
    """API calls that stand in a function's text: ``apis.<app>.<api>`` and ``apis[app].<api>``."""
    apps = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    apps = [app.value for app in apps if isinstance(app, (ast.Attribute, ast.Subscript))]
    return sum(isinstance(root, ast.Name) and root.id == "apis" for root in apps)


def skill_rows(directory: Path) -> pd.DataFrame:
    """A row per skill that an evaluation's agents made: scenario, name, characters, api_calls (its callees' included),
    made_solved (its task was solved), called (in how many later tasks), called_solved (and solved)."""
    rows = []
    for chain in chain_rows(directory):
        for k, episode in enumerate(chain["episodes"]):
            for name in episode["skills_made"]:
                library = chain["libraries"][k]
                users = _users(chain["episodes"][k + 1 :], name)
                rows.append({"split": chain["split"], "scenario_id": episode["scenario_id"], "name": name, "position": k,
                             "characters": len(library[name]),
                             "api_calls": sum(api_calls(library[n]) for n in (*callees(name, library), name)),
                             "made_solved": episode["success"], "called": len(users),
                             "called_solved": sum(e["success"] for e in users)})
    return pd.DataFrame(rows, columns=SKILL_COLUMNS)


def _users(later: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Later tasks that call the skill, up to the one that defines it anew."""
    users = []
    for episode in later:
        if name in episode["skills_made"]:
            break
        users += [episode] if name in episode["skills_called"] else []
    return users


def skill_summary(skills: pd.DataFrame) -> dict[str, float | int | None]:
    """The paper's figures of a library: size, skills used, multi-API share, solved when used, and what a skill is."""
    users = int(skills["called"].sum())
    return {"skills": len(skills), "used": int((skills["called"] > 0).sum()),
            "multi_api": 100 * float((skills["api_calls"] > 1).mean()) if len(skills) else None,
            "solved_when_used": 100 * float(skills["called_solved"].sum()) / users if users else None,
            "from_solved_task": 100 * float(skills["made_solved"].mean()) if len(skills) else None,
            "characters": float(skills["characters"].mean()) if len(skills) else None}


def skill_table(run: Run, cells: Sequence[Cell], seeds: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`skill_summary` per cell, seed and split, and all skills one by one. Cells whose agents made none are out."""
    parts = [skill_rows(d).assign(cell=cell.label, seed=seed) for cell in cells for seed in seeds if (d := find(run, cell, seed))]
    skills = pd.concat(parts) if parts else pd.DataFrame(columns=["cell", "seed", *SKILL_COLUMNS])
    keys = ["cell", "seed", "split"]
    summary = [dict(zip(keys, key, strict=True)) | skill_summary(part) for key, part in skills.groupby(keys, sort=False)]
    return pd.DataFrame(summary, columns=None if summary else keys).astype({"seed": int}), skills


def collected(run: Run, studies: Sequence[Study], missing: Mapping[str, str]) -> pd.DataFrame:
    """All studies in one table: means over seeds per study, cell and split, gaps with their reason, and beside
    test_normal what the paper has for a cell of that name (columns paper_*: another world, see `published.NOTE`)."""
    parts = []
    for study in studies:
        found = run.inputs(study.notebook)
        if not found:
            why = missing.get(study.notebook, f"no finished run of {study.notebook}")
            parts.append(pd.DataFrame([{"study": study.name, "reason": why}]))
            continue
        table = pd.read_csv(found[0] / "results" / f"table_{study.name}.csv", dtype={"run_id": str, "cell": str})
        table["reason"] = table["reason"].fillna("")
        gaps = table.loc[table["reason"] != "", ["cell", "split", "reason"]].drop_duplicates()
        means = over_seeds(table).reset_index()
        paper = published.study(study.name).drop(columns="source").set_index("cell").add_prefix("paper_").reset_index()
        means = means.merge(paper.assign(split="test_normal"), on=["cell", "split"], how="left")
        parts.append(pd.concat([means, gaps]).assign(study=study.name))
    return pd.concat(parts, ignore_index=True).pipe(lambda t: t[["study", *t.columns.drop("study")]])
