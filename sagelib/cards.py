"""A model card and a dataset card in Markdown, written from a run's own records: nothing in them is typed by hand.

What a record does not hold is said to be unknown; a run that is not done, or was changed since, says so in its first lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagelib.runs import RunError, fault, list_runs, read_json, read_run

MODEL_NOTEBOOKS = ("02_sft", "02_sft_llm", "03_train")
DATA_NOTEBOOKS = ("01_collect", "03_train", "04_evaluate")
SCORES = ("tgc", "sgc", "steps", "tokens", "skill_use", "success_when_used", "n_tasks")


def model_card(run: Path | str) -> str:
    """Markdown for the policy that a run of 02_sft or 03_train made, with the evaluations of it that are on record."""
    record = _record(run, MODEL_NOTEBOOKS)
    seen = _seen(record)
    method = seen.get("method", "sft")
    lines = [f"# Policy {record['run_id']} ({_text(method)})", *_state(record), "",
             "Trained by this workbench on a generated world. The scores are that world's, not AppWorld's.", "",
             "## Training", *_table(seen), "", "## Where it comes from", *_origin(record), "",
             "## Results of the training", *_results(record), "",
             "## Evaluation on held-out scenarios"]
    tables = [read_json(Path(r["directory"]) / "results.json") or {} for r in _evaluations(record)]
    rows = [row for table in tables for row in table.get("table", [])]
    if not rows:
        lines.append("Not evaluated: no finished run of 04_evaluate has this run as its input.")
    else:
        lines += ["| split | method | seed | " + " | ".join(SCORES) + " |", "| --- " * (3 + len(SCORES)) + "|"]
        lines += ["| " + " | ".join(_text(row.get(c)) for c in ("split", "method", "seed", *SCORES)) + " |" for row in rows]
    lines += ["", "## Limits", "The policy writes Python that is executed: run it in the engine's sandbox only. "
              "It knows the apps of its world and nothing else; it was not tested for anything but these tasks."]
    return "\n".join(lines) + "\n"


def dataset_card(run: Path | str) -> str:
    """Markdown for the data that a run left: demonstrations of 01_collect, or the episodes of 03_train and 04_evaluate."""
    record = _record(run, DATA_NOTEBOOKS)
    directory = Path(record["directory"])
    files = sorted([*directory.glob("demos.jsonl"), *directory.glob("episodes*.jsonl"), *directory.glob("episodes.csv")])
    lines = [f"# Data of run {record['run_id']} ({record['notebook']})", *_state(record), "",
             "Generated: people, accounts, tasks and texts come from this workbench's world generator; nobody in it is real.",
             "",
             "## Files", "| file | lines | bytes | sha256 |", "| --- | --- | --- | --- |"]
    for file in files:
        sha = record["artifacts"].get(file.name)
        with open(file, "rb") as opened:
            count = sum(1 for _ in opened)
        lines.append(f"| {file.name} | {count} | {file.stat().st_size} | {sha or 'not recorded'} |")
    if not files:
        raise RunError(f"{directory} holds no demos.jsonl and no episodes. Fix: name a run that has ended")
    lines += ["", "A line of demos.jsonl is a demonstration; a line of episodes*.jsonl is one copy of a chain with every token "
              "that was sampled (`play.chain_record`); a row of episodes.csv is one task in one play.", "",
              "## How it was made", *_table(_seen(record)), "", "## Where it comes from", *_origin(record), "",
              "## Results of the run", *_results(record), "",
              "## Licence", "The apps and their data are AppWorld's (Apache-2.0, to be redistributed in encrypted form only): "
              "keep files with content of the world unpublished, or publish them as AppWorld's licence asks."]
    return "\n".join(lines) + "\n"


def _record(run: Path | str, notebooks: tuple[str, ...]) -> dict:
    directory = Path(getattr(run, "dir", run))
    record = read_run(directory)
    if record["notebook"] not in notebooks and not record.get("interactive"):
        raise RunError(f"{directory} is a run of {record['notebook']}. Fix: name a run of {' or '.join(notebooks)}")
    return record


def _seen(record: Mapping[str, Any]) -> dict[str, Any]:
    return record.get("parameters_seen") or read_json(Path(record["directory"]) / "config.json") or record["parameters"]


def _state(record: Mapping[str, Any]) -> list[str]:
    wrong = fault(Path(record["directory"]))
    return ["", f"**Not to be relied on: {wrong}.**"] if wrong else []


def _origin(record: Mapping[str, Any]) -> list[str]:
    world, git = record.get("world") or {}, record.get("git") or {}
    dirty = {True: " with uncommitted changes", False: ""}.get(git.get("dirty"), ", changes unknown")
    rows = {"notebook": record["notebook"], "seed": record["seed"], "started": record["started"], "ended": record.get("ended"),
            "seconds": record.get("seconds"), "world": world.get("name"), "world hash": world.get("hash"),
            "code": f"commit {git['commit']}{dirty}" if git.get("commit") else None,
            "input runs": ", ".join(f"{i['notebook']} {i['run_id']}" for i in record.get("inputs") or []) or "none",
            "versions": ", ".join(f"{k} {v}" for k, v in (record.get("versions") or {}).items()) or None}
    return _table(rows)


def _evaluations(record: Mapping[str, Any]) -> list[dict]:
    root = Path(record["directory"]).parent.parent
    return [r for r in list_runs(root) if r["notebook"] == "04_evaluate" and r["status"] == "done"
            and any(i["run_id"] == record["run_id"] for i in r.get("inputs") or [])]


def _results(record: Mapping[str, Any]) -> list[str]:
    return _table(_flat(read_json(Path(record["directory"]) / "results.json") or {}))


def _flat(values: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{head}{key}.") if isinstance(value, Mapping) else {f"{head}{key}": value}
    return flat


def _table(values: Mapping[str, Any]) -> list[str]:
    if not values:
        return ["unknown (not recorded)"]
    return ["| | |", "| --- | --- |", *(f"| {_text(k)} | {_text(v)} |" for k, v in values.items())]


def _text(value: Any) -> str:
    """A cell: nothing in it ends the cell or the line, or is taken for markup."""
    if value is None:
        return "unknown"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
