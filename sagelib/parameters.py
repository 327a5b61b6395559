"""The parameters of a notebook: what its one cell of them declares, and whether what is given arrives there unchanged.

papermill alone only warns of a misspelt parameter and writes NaN into the file.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagelib.run_ids import notebook_cells
from sagelib.runs import RunError

SECRET = {"key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials"}
MAX_DEPTH = 50           # of lists and dicts in a parameter; Python's parser takes about 90 brackets
MAX_BITS = 13000         # of an integer; Python writes and reads integers of up to 4300 digits


def normal(name: str, value: Any, depth: int = 0) -> Any:
    """The parameter as the notebook will see it: JSON values only. RunError for what would arrive as something else."""
    if isinstance(value, Path):
        value = str(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return _scalar(name, value)
    if depth >= MAX_DEPTH:
        raise RunError(f"parameter {name[:80]}: lists and dicts nested deeper than {MAX_DEPTH} cannot be written into a notebook")
    if type(value) is list:
        return [normal(f"{name}[{i}]", v, depth + 1) for i, v in enumerate(value)]
    if type(value) is dict:
        odd = [key for key in value if type(key) is not str]
        if odd:
            raise RunError(f"parameter {name}: key {odd[0]!r} is no text; a notebook would see it as one")
        return {_scalar(f"{name}, a key", key): normal(f"{name}.{key}", v, depth + 1) for key, v in value.items()}
    fix = "; use a list" if isinstance(value, (tuple, set, frozenset)) else ""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):   # a huge integer in it, or itself
        shown = "..."
    raise RunError(f"parameter {name} = {shown}: a {type(value).__name__} does not arrive unchanged{fix} "
                   f"(numbers, text, True, False, None, lists and dicts do)")


def _scalar(name: str, value: Any) -> Any:
    """A plain value that a notebook's file can hold and give back; RunError for one that it cannot."""
    if type(value) is float and not math.isfinite(value):
        raise RunError(f"parameter {name} = {value}: only finite numbers can be written into a notebook")
    if type(value) is int and value.bit_length() > MAX_BITS:
        raise RunError(f"parameter {name}: an integer of {value.bit_length()} bits cannot be written into a notebook")
    if type(value) is str and any("\ud800" <= c <= "\udfff" for c in value):
        raise RunError(f"parameter {name} = {value!r}: holds half a character (a lone surrogate), which no file can hold")
    return value


def declared(notebook: Path) -> dict[str, Any]:
    """Names and defaults of the notebook's one parameters cell. RunError when there is none, two, or code in it."""
    if not notebook.exists():
        near = difflib.get_close_matches(notebook.stem, [p.stem for p in notebook.parent.glob("*.ipynb")], 1)
        raise RunError(f"there is no notebook {notebook}" + (f"; did you mean {near[0]}?" if near else ""))
    cells = [c for c in notebook_cells(notebook) if "parameters" in c["tags"]]
    if len(cells) != 1:
        raise RunError(f"{notebook.name} has {len(cells)} cells tagged 'parameters', it needs exactly one")
    found = {}
    for line in ast.parse(cells[0]["source"]).body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        try:
            found[target.id] = ast.literal_eval(line.value)
        except (AttributeError, ValueError):
            raise RunError(f"{notebook.name}: the parameters cell holds more than NAME = literal: "
                           f"{ast.unparse(line)}") from None
    return found


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, normalised; RunError for a name that the notebook lacks, a secret, or an unfit value."""
    known = declared(notebook)
    for name in parameters:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower().split("_")   # hfToken -> hf, token
        if SECRET.intersection(words):
            raise RunError(f"parameter {name}: looks like a secret, and parameters are stored with the run; "
                           f"use an environment variable")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.6)
            raise RunError(f"{notebook.stem} has no parameter {name!r}; "
                           + (f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"))
    return {name: normal(name, value) for name, value in parameters.items()}
