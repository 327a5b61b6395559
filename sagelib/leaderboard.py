"""An evaluation as AppWorld's own tools read it: the blocks that a run of 04_evaluate recorded, played again in the engine.

    table, other = leaderboard.export("RUN", "my_entry")        ./workbench leaderboard RUN --out my_entry

    OUT/data/                                       the world's data, by links; datasets/SPLIT.txt: the tasks of the run
    OUT/experiments/outputs/EXPERIMENT/tasks/TASK/  dbs, logs and version as the engine writes them
    OUT/experiments/outputs/EXPERIMENT/evaluations/ what its evaluator said

OUT is an APPWORLD_ROOT: `appworld evaluate`, `pack` and `make` take it. An experiment is one split, and one play of each of its
tasks. Loading the skills of a library counts as one interaction in the engine's log, as it was one. That the end states are the
run's is checked with AppWorld's evaluator, task by task and in TGC and SGC.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sagelib import viewer
from sagelib.appworld import EngineDied, EngineMissing, Limits
from sagelib.config import ConfigError, EvalConfig
from sagelib.datasets import world_dir
from sagelib.environments import appworld_env
from sagelib.replay import AGAIN, SIDE, ReplayPool, replay_split
from sagelib.runs import RunError, fault, read_json, read_run, world_record
from sagelib.trajectories import Record, read_records

TASK_SECONDS = 20   # of the evaluator, at most
SCORES = (("tgc", "task_goal_completion"), ("sgc", "scenario_goal_completion"))
EVALUATE = "evaluate again with ./workbench reproduce --only 04_evaluate --force"


# ---------------------------------------------------------------- what the run recorded

def load(run: Any) -> tuple[dict, EvalConfig, dict[str, list[Record]]]:
    """Record, settings and recorded chains (by split) of a finished evaluation. RunError says what is wrong with another."""
    directory = viewer.run_directory(run)
    record = read_run(directory)
    if record["notebook"] != "04_evaluate":
        raise RunError(f"{directory} is a run of {record['notebook']}. Fix: name a run of 04_evaluate (./workbench runs)")
    wrong = fault(directory)
    if wrong:
        raise RunError(f"{directory} cannot be relied on: {wrong}. Fix: name a finished run of 04_evaluate")
    seen = record.get("parameters_seen") or read_json(directory / "config.json") or {}
    now = world_record(seen.get("world", ""))
    if record["world"] != now:
        raise RunError(f"{directory} was played in another world ({_hash(record['world'])}) than data/{seen.get('world')} is now "
                       f"({_hash(now)}). Fix: evaluate again with ./workbench reproduce")
    try:
        cfg = EvalConfig(**seen)
    except ConfigError as error:
        raise RunError(f"{directory} is of another version of this workbench: {error}\nFix: {EVALUATE}") from None
    splits = {}
    for split in cfg.splits:
        path = directory / f"episodes_{split}.jsonl"
        if not path.is_file():
            raise RunError(f"{directory} has no recorded episodes of {split} (no {path.name}): nothing to play again. "
                           f"Fix: {EVALUATE}")
        splits[split] = list(read_records(path))
        _complete(path, splits[split], _recorded(directory, split))
    return record, cfg, splits


def _hash(world: dict | None) -> str:
    return world["hash"][:10] if world else "not generated"


def _recorded(directory: Path, split: str) -> dict[str, Any]:
    """The split's line of the run's own table."""
    table = (read_json(directory / "results.json") or {}).get("table", [])
    return next((row for row in table if row["split"] == split), {})


def _complete(path: Path, records: Sequence[Record], row: dict[str, Any]) -> None:
    episodes = [e for r in records for e in r["episodes"]]
    lost = [e["task_id"] for e in episodes if e["stop"] == "env_failure"]
    if lost:
        raise RunError(f"{path}: the engine failed in {len(lost)} episodes, which AppWorld would count as the agent's failures: "
                       f"{_names(lost)}. Fix: {EVALUATE}")
    if len(episodes) != row.get("n_episodes"):
        raise RunError(f"{path} holds {len(episodes)} episodes, the run's table {row.get('n_episodes')}. "
                       f"Fix: restore the file, or {EVALUATE}")
    if not all("code" in turn for e in episodes for turn in e["turns"]):
        raise RunError(f"{path} holds replies without their blocks. Fix: {EVALUATE}")


def _names(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:10]) + (f" and {len(tasks) - 10} more" if len(tasks) > 10 else "")


# ---------------------------------------------------------------- AppWorld's folder

def free(out: Path) -> Path:
    """The absolute path. RunError when something is there."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunError(f"{out} is there already and not empty. Fix: name a new folder with --out, or move this one away")
    return Path(os.path.abspath(out))


def make_root(out: Path, data: Path, splits: dict[str, list[Record]]) -> None:
    """A new APPWORLD_ROOT on the world's data; its data sets hold the tasks that were played."""
    (out / "data" / "datasets").mkdir(parents=True, exist_ok=True)
    for part in sorted(data.iterdir()):
        if part.name != "datasets":
            (out / "data" / part.name).symlink_to(part.resolve())
    for split, records in splits.items():
        tasks = dict.fromkeys(e["task_id"] for r in records for e in r["episodes"])
        (out / "data" / "datasets" / f"{split}.txt").write_text("\n".join(tasks) + "\n")


def experiment(record: dict, cfg: EvalConfig, split: str, play: int, plays: int) -> str:
    """An experiment's name as AppWorld's leaderboard wants it: lower case, no spaces, its data set at the end."""
    words = [cfg.world, cfg.method, record["run_id"], *([f"play{play + 1}"] if plays > 1 else [])]
    return "_".join([*(re.sub(r"[^a-z0-9]+", "-", word.lower()) for word in words), split])


def write_task(folder: Path, files: dict[str, str]) -> None:
    """The task's folder holds these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


def run_evaluator(python: Path, out: Path, experiments: Sequence[tuple[str, str]], tasks: int) -> list[dict[str, Any]]:
    """AppWorld's evaluator on (experiment, split)s; what it wrote for each. RunError with the end of its log."""
    words = [str(python), str(SIDE / "evaluate.py"), str(out), *(word for pair in experiments for word in pair)]
    log, seconds = out / "evaluator.log", 120 + TASK_SECONDS * tasks
    try:
        with open(log, "w") as file:
            subprocess.run(words, cwd=out, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=True, timeout=seconds,
                           env=appworld_env())
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        what = f"ended with code {error.returncode}" if hasattr(error, "returncode") else f"took more than {seconds} s"
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
        raise RunError(f"AppWorld's evaluator {what}; the end of {log}:\n  {last}") from None
    return [read_json(out / "experiments" / "outputs" / name / "evaluations" / f"{split}.json") for name, split in experiments]


def differences(found: dict[str, Any], records: Sequence[Record]) -> list[str]:
    """Tasks on which AppWorld's evaluator differs from the run, with what both say."""
    wrong = []
    for episode in (e for r in records for e in r["episodes"]):
        verdict = found["individual"][episode["task_id"]]
        passed, total = len(verdict["passes"]), verdict["num_tests"]
        if bool(verdict["success"]) != episode["success"] or abs(passed - episode["fraction"] * total) > 1e-6:
            wrong.append(f"{episode['task_id']} ({passed} of {total} tests, in the run {episode['fraction'] * total:g})")
    return wrong


def export(run: Any, out: Path | str, progress: Callable[[int, int], None] = lambda done, total: None
           ) -> tuple[list[dict[str, Any]], int]:
    """The new folder ``out``; a row per experiment with AppWorld's own TGC and SGC, and how many blocks were answered otherwise
    than in the run (random draws). RunError names the tasks on which a verdict differs; the folder then stays as it is."""
    record, cfg, splits = load(run)
    world, out = world_dir(cfg.world), free(Path(out))
    plays = {split: 1 + max(r["copy"] for r in records) for split, records in splits.items()}
    most = max(plays.values())
    names = {(split, play): experiment(record, cfg, split, play, most) for split in splits for play in range(plays[split])}
    total, other, done = sum(len(r["episodes"]) for records in splits.values() for r in records), 0, 0
    try:
        with ReplayPool(world, parallel=cfg.parallel, limits=Limits(step_s=cfg.step_seconds)) as pool:
            make_root(out, world / "judge" / "data", splits)
            for split, records in splits.items():
                for r, task, files, count in replay_split(pool, cfg, records):
                    write_task(out / "experiments" / "outputs" / names[split, r["copy"]] / "tasks" / task, files)
                    done, other = done + 1, other + count
                    progress(done, total)
    except (EngineMissing, EngineDied, FileNotFoundError) as error:
        raise RunError(str(error)) from error
    found = run_evaluator(pool.python, out, [(name, split) for (split, _), name in names.items()], total)
    by_play = dict(zip(names, found, strict=True))
    for split, records in splits.items():
        results = [by_play[split, play] for play in range(plays[split])]
        agree(split, records, results, _recorded(Path(record["directory"]), split))
    sizes = {split: len(part["tasks"]) for split, part in read_json(world / "datasets.json").items()}
    return [{"experiment": names[split, play], "split": split, "tasks": len(result["individual"]), "of": sizes[split],
             **{name: result["aggregate"][long] for name, long in SCORES}} for (split, play), result in by_play.items()], other


def agree(split: str, records: Sequence[Record], found: Sequence[dict[str, Any]], row: dict[str, Any]) -> None:
    """RunError unless the evaluator's verdicts (one result per play) are the records', and its scores those of the run's table.

    The table has means over plays; AppWorld rounds each play's scores to one decimal.
    """
    wrong = [f"play {play + 1}: {text}" for play, result in enumerate(found)
             for text in differences(result, [r for r in records if r["copy"] == play])]
    if wrong:
        raise RunError(f"{split}: AppWorld's evaluator differs from the run on {len(wrong)} tasks: {_names(wrong)}. {AGAIN}")
    for name, long in SCORES:
        mean = sum(result["aggregate"][long] for result in found) / len(found)
        if abs(mean - row[name]) > 0.051:
            raise RunError(f"{split}: AppWorld's evaluator gives {name.upper()} {mean:.2f}, the run's table {row[name]:.2f}, "
                           f"though the verdicts agree. Fix: {EVALUATE}")
