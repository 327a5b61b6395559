"""A training seen from outside while it runs: read from its directory only, so that any kernel can attach and leave.

    from sagelib import live
    live.watch("runs/laptop/03_train-ID")     redraws until the run ends; interrupt the kernel to stop looking
    live.draw("runs/laptop/03_train-ID")      once

Everything comes from what training writes anyway: metrics.jsonl (a row per step), episodes.jsonl (returns of each
position), progress.json (time left) and run.json with its lock (still running?). Nothing is written here.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from sagelib.figures import style
from sagelib.runs import RunError, read_json, read_metrics, read_run
from sagelib.types import StopReason

COLOURS = dict(zip((str(reason) for reason in StopReason), plt.get_cmap("tab10").colors, strict=False))


@dataclass
class Tail:
    """Returns of episodes.jsonl as it grows: each call of `read` parses only the lines that are new."""

    path: Path
    offset: int = 0
    rows: list[tuple[int, int, float]] = field(default_factory=list)   # step, position from 1, return

    def read(self) -> list[tuple[int, int, float]]:
        """All rows so far. A torn last line waits; a file that a resumed run has cut is read again from its start."""
        if not self.path.exists():
            return []
        try:
            self._read_new()
        except (ValueError, KeyError):   # not at the start of a line any more: the file was written anew
            self.offset, self.rows = 0, []
            self._read_new()
        return self.rows

    def _read_new(self) -> None:
        if self.path.stat().st_size < self.offset:
            self.offset, self.rows = 0, []
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                self.rows += [(record["step"], k, R) for k, R in enumerate(record["returns"], 1) if R is not None]
                self.offset += len(line)


TOO_MANY_CUT = 20   # percent of the last five steps' episodes that a limit of length ended


@dataclass
class View:
    """What is known of a run at one moment."""

    title: str
    status: str
    metrics: pd.DataFrame                # one row per step that was played
    returns: pd.DataFrame                # index step, one column of mean returns per position
    steps: tuple[int, int] | None        # done, of
    left_s: float | None
    episodes_per_s: float | None


def look(run: Any, tail: Tail | None = None) -> View:
    """The state of a run's directory (or of a `runs.Run`). RunError when it is no training run."""
    directory = Path(getattr(run, "dir", run))
    record = read_run(directory)
    rows = [r for r in read_metrics(directory) if r.get("kind") == "rollout"]
    if not rows and record["status"] != "running":
        raise RunError(f"{directory} ({record['notebook']}, {record['status']}) has no step in its metrics.jsonl. "
                       f"Fix: name a run of 03_train, ./workbench runs lists them")
    returns = pd.DataFrame((tail or Tail(directory / "episodes.jsonl")).read(), columns=["step", "position", "R"])
    progress = read_json(directory / "progress.json") or {}
    given = {**record["parameters"], **(read_json(directory / "config.json") or {})}
    words = (record["notebook"], given.get("method"), f"seed {given.get('seed')}", record["run_id"])
    title = " ".join(str(word) for word in words if word)
    running = record["status"] == "running"
    return View(
        title, record["status"], pd.DataFrame(rows).set_index("step") if rows else pd.DataFrame(),
        returns.groupby(["step", "position"])["R"].mean().unstack() if len(returns) else pd.DataFrame(),
        (progress["done"], progress["total"]) if {"done", "total"} <= progress.keys() else None,
        progress.get("left_s") if running else None, speed(rows, given.get("episodes_per_step")))


def speed(rows: list[dict], per_step: int | None, last: int = 5) -> float | None:
    """Episodes per second, gradient steps included, over the last steps. None until two steps were played."""
    recent = rows[-last - 1:]
    if per_step is None or len(recent) < 2 or recent[-1]["time"] <= recent[0]["time"]:
        return None
    # the median gap: a run that was stopped for a night and resumed has one gap of a night
    gaps = pd.Series([r["time"] for r in recent]).diff().dropna()
    return per_step / gaps.median()


def headline(view: View) -> str:
    """Status, steps, speed and time left in one line."""
    words = [view.title, view.status]
    if view.steps:
        words.append(f"step {view.steps[0]} of {view.steps[1]}")
    if view.episodes_per_s:
        words.append(f"{view.episodes_per_s:.2f} episodes/s")
    if view.left_s is not None:
        words.append(f"{view.left_s / 60:.0f} min left" if view.left_s >= 90 else f"{view.left_s:.0f} s left")
    cut = percent(view.metrics, "truncated")
    if cut is not None and cut.tail(5).mean() > TOO_MANY_CUT:
        words.append(f"{cut.tail(5).mean():.0f} % of episodes cut: raise max_tokens_per_turn or max_context")
    return "  |  ".join(words)


def draw(run: Any, tail: Tail | None = None) -> plt.Figure:
    """Return by position, solved tasks and skill use, groups that teach nothing and truncation, stop reasons."""
    view = look(run, tail)
    style()
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.4))
    for position in view.returns:
        axes[0].plot(view.returns.index, view.returns[position], label=f"task {position}", lw=1.2)
    for axis, names in ((axes[1], {"solved": "tasks solved", "skill_use": "later tasks using a skill"}),
                        (axes[2], {"zero_variance": "groups that teach nothing", "truncated": "cut or out of context"})):
        for name, label in names.items():
            values = percent(view.metrics, name)
            if values is not None:
                axis.plot(values.index, values, label=label, lw=1.2)
        axis.set_ylim(-2, 102)
    stops = stop_shares(view.metrics)
    if len(stops):
        axes[3].stackplot(stops.index, stops.T.values, labels=list(stops), colors=[COLOURS[name] for name in stops])
        axes[3].set_ylim(0, 100)
    titles = ("mean return", "solved, skill use (%)", "nothing to learn (%)", "stop reasons (% of episodes)")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="step")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=6)
        else:
            axis.text(0.5, 0.5, "no step yet", ha="center", va="center", transform=axis.transAxes)
    figure.suptitle(headline(view), fontsize=9)
    figure.tight_layout()
    return figure


def percent(metrics: pd.DataFrame, name: str) -> pd.Series | None:
    """A column in percent, None when no step has it; `truncated` are replies at the length limit and full contexts."""
    if name == "truncated":
        parts = [c for c in ("stop_max_tokens", "stop_context_full") if c in metrics]
        return metrics[parts].sum(axis=1) if parts else None
    values = metrics[name].dropna() if name in metrics else pd.Series(dtype=float)
    return values.astype(float) if len(values) else None


def stop_shares(metrics: pd.DataFrame) -> pd.DataFrame:
    """Percent of a step's episodes per stop reason, those that occurred; the most frequent first."""
    columns = {c: c.removeprefix("stop_") for c in metrics if c.startswith("stop_") and metrics[c].sum() > 0}
    shares = metrics[list(columns)].rename(columns=columns)
    return shares[sorted(shares, key=lambda name: -shares[name].mean())]


def watch(run: Any, every: float = 5.0, polls: int | None = None) -> View:
    """Redraws in this cell until the run has ended (or `polls` times); interrupting the kernel only stops the looking."""
    from IPython.display import display  # here: figures without a notebook need no IPython
    directory = Path(getattr(run, "dir", run))
    tail, handle, count = Tail(directory / "episodes.jsonl"), display(display_id=True), 0
    try:
        while True:
            figure = draw(directory, tail)
            handle.update(figure)
            plt.close(figure)   # else the inline backend shows it a second time when the cell ends
            count += 1
            view = look(directory, tail)
            if view.status != "running" or (polls is not None and count >= polls):
                return view
            time.sleep(every)
    except KeyboardInterrupt:
        return look(directory, tail)
