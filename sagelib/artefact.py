"""The skills of a run as a thing of its own: a folder of functions with where they came from and what they were good for.

    skills = harvest.collect(run_dir)               every version of every skill that any chain of the run kept
    kept, pruned = harvest.prune(skills)            without those that no task ever called
    artefact.export(kept, "my_skills")              my_skills/NAME.py (the better version), NAME_v2.py, ..., index.json
    library = artefact.load("my_skills")            a SkillLibrary: rollout(..., libraries=[library] * runs)

Exporting and loading only read and write text: nothing that an agent wrote is run here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from sagelib.figures import style
from sagelib.harvest import Skill, dependencies, duplicates
from sagelib.runs import RunError, read_json, write_json
from sagelib.skills import SkillLibrary, parse_skills

FORMAT = 1
HEAD = "# Written by an agent in a run of this workbench. Run it only where the agent's own code may run.\n"


def export(skills: Sequence[Skill], folder: Path | str) -> Path:
    """A new folder with one file per skill and index.json. A folder that holds anything is left as it is."""
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RunError(f"{folder} is there already and not empty. Fix: export to a new folder, or move this one away")
    if not skills:
        raise RunError("there is no skill to export (the run kept none, or all were pruned). Fix: prune with used=0")
    folder.mkdir(parents=True, exist_ok=True)
    calls, index = dependencies(skills), []
    for skill in skills:
        entry = asdict(skill)
        text = HEAD + entry.pop("source") + "\n"
        (folder / f"{skill.key}.py").write_text(text, encoding="utf-8")
        written = (folder / f"{skill.key}.py").read_bytes()
        sha = hashlib.sha256(written).hexdigest()
        index.append({"file": f"{skill.key}.py", "sha256": sha, "calls": calls[skill.key], **entry})
    write_json(folder / "index.json", {"format": FORMAT, "skills": index, "duplicates": duplicates(skills)})
    return folder


def read(folder: Path | str, *, edited: bool = False) -> list[Skill]:
    """The skills of an exported folder. A file that is not as exported is an error, unless `edited` says that this is meant."""
    folder = Path(folder)
    index = read_json(folder / "index.json")
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise RunError(f"{folder} holds no exported skills (no index.json of format {FORMAT}). Fix: make it with artefact.export")
    skills = []
    for entry in index["skills"]:
        known = {k: v for k, v in entry.items() if k in Skill.__dataclass_fields__}
        known["tasks_used"] = tuple(known["tasks_used"])
        skills.append(Skill(source=_source(folder, entry, edited), **known))
    return skills


def _source(folder: Path, entry: dict[str, Any], edited: bool) -> str:
    path = folder / Path(entry["file"]).name   # never outside the folder, whatever the index says
    if not path.is_file():
        raise RunError(f"{path} is named in index.json and is not there. Fix: take its entry out of index.json, or export again")
    data = path.read_bytes()
    if not edited and hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise RunError(f"{path} was changed after the export. Fix: pass edited=True if that is meant, or export again")
    source = data.decode().removeprefix(HEAD).rstrip("\n")
    held = list(parse_skills(source))
    if held != [entry["name"]]:
        raise RunError(f"{path} must hold the function {entry['name']!r} and its imports only; it holds {held or 'no skill'}. "
                       f"Fix: export again")
    return source


def load(folder: Path | str, *, edited: bool = False) -> SkillLibrary:
    """A library of version 1 of each exported skill, callees before callers, to start a policy with."""
    skills = {s.name: s for s in read(folder, edited=edited) if s.version == 1}
    calls = dependencies(list(skills.values()))
    ordered: dict[str, str] = {}

    def put(name: str, above: tuple[str, ...] = ()) -> None:
        if name in skills and name not in ordered and name not in above:   # above: two that call each other
            for callee in calls[name]:
                put(callee, (*above, name))
            ordered[name] = skills[name].source

    for name in skills:
        put(name)
    return SkillLibrary(ordered)


# ---------------------------------------------------------------- who calls whom

def depths(calls: dict[str, list[str]]) -> dict[str, int]:
    """0 for a skill that calls none, else one more than the deepest that it calls (those that call each other: no deeper)."""
    known: dict[str, int] = {}

    def depth(name: str, above: frozenset[str]) -> int:
        if name in above:
            return -1
        if name not in known:
            known[name] = 1 + max((depth(c, above | {name}) for c in calls.get(name, [])), default=-1)
        return known[name]

    for name in calls:
        depth(name, frozenset())
    return known


def draw(skills: Sequence[Skill]) -> plt.Figure:
    """The dependency graph: callers above what they call; behind a name the number of tasks that called it."""
    calls, used = dependencies(skills), {s.key: s.used for s in skills}
    if not calls:
        raise RunError("there is no skill to draw (the run kept none, or all were pruned)")
    levels: dict[int, list[str]] = {}
    for name, level in depths(calls).items():
        levels.setdefault(level, []).append(name)
    width = max(map(len, levels.values()))
    style()
    figure, axis = plt.subplots(figsize=(max(4, 1.7 * width), 1 + 0.9 * len(levels)))
    place = {name: ((i + 0.5) * width / len(names), level) for level, names in levels.items() for i, name in enumerate(names)}
    for name, (x, y) in place.items():
        for callee in (c for c in calls[name] if c in place):
            arrow = {"arrowstyle": "->", "shrinkA": 10, "shrinkB": 10, "color": "#666666"}
            axis.annotate("", place[callee], (x, y), arrowprops=arrow)
        axis.text(x, y, f"{name} ({used[name]})", ha="center", va="center", fontsize=7,
                  bbox={"boxstyle": "round", "facecolor": "#e3d9ff" if used[name] else "#eeeeee", "edgecolor": "none"})
    axis.set(xlim=(0, width), ylim=(-0.5, max(levels) + 0.5))
    axis.axis("off")
    arrows = sum(map(len, calls.values()))
    axis.set_title(f"{len(calls)} skills, {arrows} calls between them; in brackets: tasks that called it", fontsize=8)
    return figure
