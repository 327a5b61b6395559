"""Demonstrations of a model behind an endpoint: it plays as the skill-library agent, and what the judge passes is kept.

The paper does this with Claude 3.5 Sonnet V2, at several temperatures. Every chain that was played is put on record when it
ends, so that a collection which was stopped goes on, plays nothing twice and loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sagelib.chat import LLMFormat
from sagelib.endpoint import Endpoint, EndpointPolicy
from sagelib.expert import demonstration_rows
from sagelib.rollout import RolloutSettings, World, rollout
from sagelib.types import Chain


def played_before(path: Path) -> list[dict[str, Any]]:
    """Records of earlier calls, {"scenario_id", "temperature", "rows"}; a line that was cut off is left out, and cut off."""
    if not path.exists():
        return []
    whole, _, torn = path.read_text().rpartition("\n")
    if torn:
        path.write_text(whole + "\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines() if line]


def collect(
    endpoint: Endpoint,
    world: World,
    format: LLMFormat,
    chains: Sequence[Chain],
    families: dict[str, str],
    path: Path,
    settings: RolloutSettings,
    *,
    temperatures: Sequence[float] = (0.0, 0.5, 1.0),
    batch: int = 4,
    parallel: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Accepted rows, as of 01_collect, at most one per task. ``path``: the record that a later call goes on from.

    A chain is played at each temperature until all its tasks have passed. A block that failed is context, not a target.
    EndpointError ends the call; what was played until then is in ``path``. ``format``: of `endpoint.text_format`.
    """
    records = played_before(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for i, temperature in enumerate(temperatures):
        passed = {row["task_id"] for record in records for row in record["rows"]}
        done = {record["scenario_id"] for record in records if record["temperature"] == temperature}
        open_ = [c for c in chains if c.scenario_id not in done and not set(c.task_ids) <= passed]
        policy = EndpointPolicy(endpoint, format, temperature, parallel)
        for start in range(0, len(open_), batch):
            part = open_[start : start + batch]
            for run in rollout(part, 1, policy, world, format, settings, seed=seed + 1009 * i):
                modes = ["skills"] * len(run.episodes)
                trained = [[turn.error is None for turn in episode.turns] for episode in run.episodes]
                rows = demonstration_rows(run, modes, trained, True, families[run.chain.scenario_id])
                record = {"scenario_id": run.chain.scenario_id, "temperature": temperature, "rows": list(rows)}
                records.append(record)
                with open(path, "a") as file:
                    file.write(json.dumps(record) + "\n")
            progress(min(start + batch, len(open_)), len(open_))
    first: dict[str, dict[str, Any]] = {}
    for record in records:
        for row in record["rows"]:
            first.setdefault(row["task_id"], row)
    return list(first.values())
