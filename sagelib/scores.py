"""The columns of a table for one method, seed and split, from one row per task (`evaluate.COLUMNS`).

TGC: share of tasks whose unit tests all pass. SGC: share of scenarios whose three tasks all pass. Steps: blocks per
task. Tokens: sampled tokens per task. A task that the engine failed to score is left out and counted, never a zero.
"""

from __future__ import annotations

import pandas as pd


def summarise(rows: pd.DataFrame) -> dict[str, float | int | None]:
    """The table's columns for one method, seed and split; scores in percent. Raises when nothing was scored."""
    scored = rows[rows["scored"]]
    if scored.empty:
        raise RuntimeError(f"none of {len(rows)} tasks was scored: every episode was an environment failure")
    each = ["scenario_id", "play"]
    whole = scored[rows.groupby(each)["scored"].transform("all")[scored.index]]
    later = scored[scored["position"] > 0]
    used = later[later["skills_called"] > 0]
    return {
        "tgc": 100 * float(scored["success"].mean()),
        "sgc": 100 * float(whole.groupby(each)["success"].all().mean()) if len(whole) else None,
        "steps": float(scored["steps"].mean()),
        "tokens": float(scored["tokens"].mean()),
        "skill_use": 100 * len(used) / len(later) if len(later) else None,
        "success_when_used": 100 * float(used["success"].mean()) if len(used) else None,
        "n_tasks": int(scored["task_id"].nunique()),
        "n_scenarios": int(whole["scenario_id"].nunique()),
        "n_episodes": int(len(scored)),
        "env_failures": int(len(rows) - len(scored)),
    }
