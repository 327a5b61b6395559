"""Recorded episodes (`play.chain_record`, one JSON line per copy of a chain) as rows of a table and as details.

A row is small and holds what one sorts and filters by; a detail is everything that was said, run, sampled and kept.
The record has neither the parts of a return nor advantages: both are computed here by the functions of `credit`.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sagelib import credit, skills
from sagelib.pieces import whole
from sagelib.runs import RunError

Record = dict[str, Any]
COLUMNS = ("step", "family", "scenario", "task", "position", "copy", "solved", "r", "R", "outcome", "generation", "usage",
           "chain", "penalty", "A", "turns", "tokens", "stop", "called", "made")


def read_records(path: Path) -> Iterator[Record]:
    """The records of one JSONL file. A last line without its newline is still being written and is left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                record = json.loads(line)
                record["episodes"], record["chain"]["scenario_id"], record["libraries"]
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(f"{path}, line {number} is no recorded chain ({type(error).__name__}: {error}). Fix: name an "
                               f"episodes*.jsonl of 03_train or 04_evaluate") from None
            yield record


def grouped(records: Iterable[Record]) -> Iterator[list[Record]]:
    """The copies of one chain together; they are adjacent in the file, and copy numbers rise."""
    group: list[Record] = []
    for record in records:
        if group and (record["copy"] <= group[-1]["copy"] or _chain(record) != _chain(group[-1])):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _chain(record: Record) -> tuple:
    return record.get("step"), record["chain"]["scenario_id"], tuple(record["chain"]["task_ids"])


# ---------------------------------------------------------------- returns and their parts

def outcomes(record: Record) -> list[float | None]:
    """r_K as training uses it: a reply without code is the penalty in place of r, an environment failure None."""
    return [credit.NO_CODE_PENALTY if e["stop"] == "no_code" else e["fraction"] for e in record["episodes"]]


def makers(record: Record) -> list[set[int]]:
    """For each position the earlier positions that (last) made a skill which it called."""
    episodes = record["episodes"]
    made = [[[j for j in range(k) if name in episodes[j]["skills_made"]][-1:] for name in e["skills_called"]]
            for k, e in enumerate(episodes)]
    return [set(itertools.chain.from_iterable(lists)) for lists in made]


def returns(record: Record, name: str) -> list[float | None]:
    """R_K of the chain under one of `credit.CREDIT`."""
    makers_K = makers(record)
    return credit.CREDIT[name](outcomes(record), [bool(m) for m in makers_K], makers_K)


def credit_of(records: Sequence[Record]) -> str | None:
    """The credit function that gives the recorded returns of all these chains, None when there are none or none fits."""
    scored = [r for r in records if any(value is not None for value in r.get("returns") or [])]
    fits = (name for name in credit.CREDIT if all(_equal(returns(r, name), r["returns"]) for r in scored))
    return next(fits, None) if scored else None


def _equal(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return len(a) == len(b) and all(x == y or (None not in (x, y) and abs(x - y) < 1e-9) for x, y in zip(a, b, strict=True))


def parts(record: Record, name: str | None) -> list[dict[str, float | None]]:
    """For each position what its return is made of: outcome + penalty + generation + usage + chain = R."""
    r_K, makers_K = outcomes(record), makers(record)
    none, used_K = [set()] * len(r_K), [bool(m) for m in makers_K]
    sage, whole = credit.skill_integrated, credit.chain_based
    usage = sage(r_K, used_K, none) if name == "skill_integrated" else r_K
    generation = sage(r_K, [False] * len(r_K), makers_K) if name == "skill_integrated" else r_K
    chain = whole(r_K, used_K, makers_K) if name == "chain" else r_K
    rows = []
    for k, r in enumerate(r_K):
        penalised = record["episodes"][k]["stop"] == "no_code"
        bonus = {"generation": generation[k], "usage": usage[k], "chain": chain[k]}
        row = {"outcome": 0.0 if penalised else r, "penalty": r if penalised else 0.0}
        row |= {key: value if r is None else value - r for key, value in bonus.items()}
        rows.append(dict.fromkeys(row) if r is None else row)
    return rows


def advantages(group: Sequence[Record]) -> list[list[float | None]]:
    """A of each copy and position, from the recorded returns; None where nothing was recorded or scored."""
    K = len(group[0]["episodes"])
    columns = []
    for k in range(K):
        R_G = [(r.get("returns") or [None] * K)[k] for r in group]
        A_G = credit.group_advantages(R_G)
        columns.append([None if R is None else A for R, A in zip(R_G, A_G, strict=True)])
    return [list(row) for row in zip(*columns, strict=True)]


# ---------------------------------------------------------------- rows and details

def number(value: Any) -> float | int | None:
    """A number that JSON has: NaN and infinity are None, at most five decimals."""
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


def rows_of(
    record: Record, advantages_K: Sequence[float | None], credit_name: str | None, families: dict[str, str]
) -> list[list]:
    """One row of `COLUMNS` for each task of the chain."""
    rows = []
    returns_K = record.get("returns") or [None] * len(record["episodes"])
    for e, R, A, part in zip(record["episodes"], returns_K, advantages_K, parts(record, credit_name), strict=True):
        values = {
            **part, "step": record.get("step"), "family": families.get(e["scenario_id"], ""), "scenario": e["scenario_id"],
            "task": e["task_id"], "position": e["position"] + 1, "copy": record["copy"] + 1, "solved": bool(e["success"]),
            "r": e["fraction"], "R": R, "A": A, "turns": len(e["turns"]), "tokens": sum(whole(e["segment"])["own_mask_T"]),
            "stop": e["stop"], "called": " ".join(e["skills_called"]), "made": " ".join(e["skills_made"])}
        rows.append([number(values[name]) for name in COLUMNS])
    return rows


def calls(episode: dict[str, Any]) -> list[list[list]]:
    """Per turn the calls of stored skills as [name, line, counts]; `counts` is False where the block failed.

    The rule is that of `rollout`: the skill was shown, and no block of the task so far has bound its name.
    """
    found, shown = [], set(episode["skills_shown"])
    for turn in episode["turns"]:
        code = turn["code"] or ""
        named = {name for name in shown if name in code}   # parsing is most of a page's cost: not where no name occurs
        names = skills.called_skills(code, named) if named else set()
        found.append([[name, line, turn["error"] is None] for name, line in skill_lines(code, names)])
        shown -= skills.bound_names(code) if named else set()
    return found


def skill_lines(code: str, names: set[str]) -> list[tuple[str, int]]:
    """(name, line) of each call of one of the names, in order."""
    tree = ast.parse(code) if names else ast.Module([], [])
    return sorted(((n.func.id, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Call)
                   and isinstance(n.func, ast.Name) and n.func.id in names), key=lambda pair: pair[1])


def library_before(record: Record, k: int) -> dict[str, str]:
    """The library a task started with. For the first task: the kept ones of those that it was shown (the record has no more)."""
    if k:
        return record["libraries"][k - 1]
    first = record["episodes"][0]
    given = {*first["skills_shown"], *first["skills_dropped"]} - set(first["skills_made"])
    return {name: source for name, source in record["libraries"][0].items() if name in given}


def library_diff(before: dict[str, str], after: dict[str, str]) -> list[list]:
    """[name, "new" | "changed" | "gone", unified diff lines] of each skill that is not the same afterwards."""
    changes = []
    for name in [*after, *(n for n in before if n not in after)]:
        old, new = before.get(name), after.get(name)
        if old != new:
            what = "new" if old is None else "gone" if new is None else "changed"
            lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), n=99, lineterm="")
            changes.append([name, what, list(lines)[3:]])
    return changes


def detail(record: Record, k: int, tokens: dict[str, Any]) -> dict[str, Any]:
    """All of one episode that the viewer shows; `tokens` is `tokens.encode` of its segment."""
    e, before = record["episodes"][k], library_before(record, k)
    kept = ("text", "code", "observation", "error", "finish", "trained")
    turns = [{**{name: turn[name] for name in kept}, "seconds": number(turn["seconds"]), "calls": called}
             for turn, called in zip(e["turns"], calls(e), strict=True)]
    return {"instruction": e["instruction"], "turns": turns, "failures": e["failures"], "shown": e["skills_shown"],
            "dropped": e["skills_dropped"], "before": before, "after": record["libraries"][k],
            "diff": library_diff(before, record["libraries"][k]), **tokens}
