"""Which skills a run came to: every version of every skill that its chains kept, with counts and provenance.

Two sources are the same version when their syntax trees are: layout, comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sagelib import trajectories
from sagelib.runs import RunError, read_json
from sagelib.skills import called_skills


@dataclass(frozen=True)
class Skill:
    """One version of a skill. Counts are over tasks of the run; a task that called it is solved when all its tests passed."""

    name: str
    source: str
    version: int = 1          # 1 is the version of its name that solved most
    run_id: str = ""
    task_id: str = ""         # where it was first saved
    step: int | None = None   # optimizer step of that, None in an evaluation
    made: int = 0             # tasks that saved it
    made_solved: int = 0
    used: int = 0             # later tasks that called it
    used_solved: int = 0
    tasks_used: tuple[str, ...] = field(default=(), repr=False)
    called_as: str = field(default="", repr=False)   # the line of the first call, "" where nothing but a mention counted

    @property
    def key(self) -> str:
        """NAME of version 1, NAME_v2 and so on: the name of its file."""
        return self.name if self.version == 1 else f"{self.name}_v{self.version}"


def normal_form(source: str, *, keep_name: bool = True) -> str:
    """The syntax tree as text, without docstrings. Without its name, too, two skills that only differ in it are equal."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    if not keep_name:
        for definition in [n for n in tree.body if isinstance(n, ast.FunctionDef)]:
            own = definition.name
            for node in ast.walk(definition):   # a recursive call goes with the name
                if isinstance(node, ast.Name) and node.id == own:
                    node.id = "_"
            definition.name = "_"
    return ast.dump(tree)


# ---------------------------------------------------------------- from a run

def collect(source: Path | str | Sequence[Path]) -> list[Skill]:
    """All versions of all skills that a run's chains kept, most used first. `source`: run directory or episodes files."""
    directory = Path(source) if isinstance(source, (str, Path)) else None
    files = sorted(directory.glob("episodes*.jsonl")) if directory else [Path(f) for f in source]
    if not files:
        raise RunError(f"{source} has no episodes*.jsonl. Fix: name a run of 03_train or 04_evaluate (./workbench runs)")
    run_id = ((read_json(directory / "run.json") or {}).get("run_id") or directory.name) if directory else ""
    found: dict[tuple[str, str], Skill] = {}
    forms: dict[str, str] = {}
    for record in itertools.chain.from_iterable(map(trajectories.read_records, files)):
        for k, episode in enumerate(record["episodes"]):
            before, after = trajectories.library_before(record, k), record["libraries"][k]
            for name in episode["skills_made"]:
                skill = _entry(found, forms, name, after[name], run_id, episode, record)
                found[name, forms[after[name]]] = replace(
                    skill, made=skill.made + 1, made_solved=skill.made_solved + bool(episode["success"]))
            for name in episode["skills_called"]:
                if name not in before:
                    continue   # a starting library that the record does not hold
                skill = _entry(found, forms, name, before[name], run_id, episode, record)
                found[name, forms[before[name]]] = replace(
                    skill, used=skill.used + 1, used_solved=skill.used_solved + bool(episode["success"]),
                    tasks_used=tuple(dict.fromkeys([*skill.tasks_used, episode["task_id"]])),
                    called_as=skill.called_as or calling_line(episode, name))
    return numbered(found.values())


def calling_line(episode: dict[str, Any], name: str) -> str:
    """The first line of the recorded episode's code that calls the stored skill in a block that ran clean; "" without one."""
    for turn, called in zip(episode["turns"], trajectories.calls(episode), strict=True):
        for skill, line, counts in called:
            if skill == name and counts:
                return re.split(r"\r\n|\r|\n", turn["code"])[line - 1].strip()   # as Python counts lines
    return ""


def _entry(found: dict, forms: dict, name: str, source: str, run_id: str, episode: dict, record: dict) -> Skill:
    if source not in forms:
        forms[source] = normal_form(source)
    new = Skill(name, source, run_id=run_id, task_id=episode["task_id"], step=record.get("step"))
    return found.setdefault((name, forms[source]), new)


def numbered(skills: Iterable[Skill]) -> list[Skill]:
    """Most used first; the versions of one name numbered from 1 in the order of tasks solved with them."""
    best = sorted(skills, key=lambda s: (-s.used_solved, -s.used, -s.made, s.name, s.source))
    count = Counter()
    for i, skill in enumerate(best):
        count[skill.name] += 1
        best[i] = replace(skill, version=count[skill.name])
    return sorted(best, key=lambda s: (-s.used, -s.used_solved, -s.made, s.key))


def duplicates(skills: Sequence[Skill]) -> list[list[str]]:
    """Groups of keys of skills that do the same under different names (equal trees but for the name), larger groups first."""
    groups: dict[str, list[str]] = {}
    for skill in skills:
        groups.setdefault(normal_form(skill.source, keep_name=False), []).append(skill.key)
    return sorted((g for g in groups.values() if len(g) > 1), key=lambda g: (-len(g), g))


def dependencies(skills: Sequence[Skill]) -> dict[str, list[str]]:
    """Key -> names of other skills of the collection that its source calls (version 1 of a name is meant)."""
    names = {s.name for s in skills}
    return {s.key: sorted(called_skills(s.source, names - {s.name})) for s in skills}


def prune(skills: Sequence[Skill], used: int = 1) -> tuple[list[Skill], list[Skill]]:
    """(kept, pruned): kept are the skills that at least `used` tasks called, and those that kept ones call."""
    calls, by_name = dependencies(skills), {s.name: s for s in skills if s.version == 1}
    keep = {s.key for s in skills if s.used >= used}
    todo = list(keep)
    while todo:
        for name in calls[todo.pop()]:
            if name in by_name and name not in keep:
                keep.add(name)
                todo.append(name)
    kept = [s for s in skills if s.key in keep]
    return numbered(kept), [s for s in skills if s.key not in keep]


def describe(skills: Sequence[Skill]) -> list[dict[str, Any]]:
    """Rows for a table (pandas.DataFrame(describe(skills))): counts and provenance without sources.

    "called by skills": how many of these skills call it; such a helper runs with them, which is no use of a task's own.
    """
    callers = Counter(name for names in dependencies(skills).values() for name in names)   # version 1 has its name as key
    return [{"skill": s.key, "used": s.used, "called by skills": callers[s.key], "solved when used": s.used_solved,
             "made": s.made, "solved when made": s.made_solved, "first task": s.task_id, "step": s.step,
             "lines": s.source.count("\n") + 1} for s in skills]
