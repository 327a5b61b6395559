"""Run ids: a hash of all that decides a run's outcome, so that an edit makes the runs stale that it concerns, and no others."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sagelib.profiles import PROFILES


def notebook_cells(notebook: Path) -> list[dict]:
    """The cells of a notebook as {type, tags, source}: what a person wrote, without outputs or counts."""
    cells = json.loads(notebook.read_text())["cells"]
    return [{"type": c["cell_type"], "tags": c.get("metadata", {}).get("tags", []),
             "source": "".join(c["source"])} for c in cells]


def imported_names(code: str) -> set[str]:
    """Every part of every module name that the code imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."), (alias.name for alias in node.names))
    return found


def sources(code: str, directory: Path) -> list[Path]:
    """Files of the directory that the code reaches through imports: editing another one makes nothing stale."""
    todo, seen = imported_names(code), {}
    while todo:
        file = directory / f"{todo.pop()}.py"
        if file.name not in seen and file.exists():
            seen[file.name] = file
            todo |= imported_names(file.read_text())
    return sorted(seen.values())


def library_sources(code: str) -> list[Path]:
    """Files of sagelib that a notebook's code depends on, with those at the other end of the engine's socket."""
    package = Path(__file__).parent
    files = sources(code, package)
    if package / "appworld.py" in files:
        files += sources("import server", package / "engine")
    return files


def code_hash(file: Path) -> str:
    """sha256 of what the code does: comments, docstrings and layout do not count."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, False):
            node.body[0].value.value = ""
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def settings_hash(config: Path, names: set[str], profile: str) -> str:
    """sha256 of config.py with those of its classes alone that are among the names, and of what the profile says of them.

    So another setting of training, or another profile, leaves the runs of 02_sft as they are.
    """
    tree = ast.parse(config.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    kept, todo = set(), names & classes.keys()
    while todo:
        kept |= todo
        todo = {base.id for name in todo for base in classes[name].bases if isinstance(base, ast.Name)} & classes.keys() - kept
    tree.body = [node for node in tree.body if not isinstance(node, ast.ClassDef) or node.name in kept]
    text = ast.unparse(tree)
    sections = {section: values for section, values in PROFILES.get(profile, {}).items() if f"= {section!r}" in text}
    return hashlib.sha256(json.dumps([text, sections], sort_keys=True).encode()).hexdigest()


def run_id(notebook: Path, parameters: Mapping[str, Any], world: str | None, inputs: Iterable[str]) -> str:
    """Ten hex digits of everything that decides the outcome: notebook, parameters, library, world hash, what inputs made."""
    cells = notebook_cells(notebook)
    code = "\n".join(c["source"] for c in cells if c["type"] == "code")
    files = {file.name: file for file in library_sources(code)}
    names = imported_names(code).union(*(imported_names(file.read_text()) for file in files.values()))
    files.pop("profiles.py", None)
    library = {name: code_hash(file) for name, file in files.items() if name != "config.py"}
    if "config.py" in files:
        library["config.py"] = settings_hash(files["config.py"], names, parameters.get("profile", "laptop"))
    parts = [code, dict(parameters), library, world, sorted(inputs)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
