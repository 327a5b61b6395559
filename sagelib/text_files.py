"""What text worlds have in common on disk: a directory below data/ whose world.json says by which code it was made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sagelib.run_ids import code_hash
from sagelib.runs import ROOT, read_json


class WorldMissing(FileNotFoundError):
    """An engine's environment, its Java, or the tasks are not there; the text says what makes them."""


def made(directory: Path, how: str) -> Path:
    """The directory, resolved. WorldMissing when no world was made in it; ``how`` names what makes one."""
    directory = Path(directory).resolve()
    if not (directory / "world.json").is_file():
        raise WorldMissing(f"no world in {directory} (world.json is missing); make it with {how}")
    return directory


def version(makers: Sequence[str]) -> str:
    """Of the modules that decide the tasks: another one makes `ensure` build again."""
    return "-".join(code_hash(ROOT / "sagelib" / f"{name}.py")[:8] for name in makers)


def ensure(name: str, version: str, build: Callable[[Path], object], check: Callable[[], object] = lambda: None) -> Path:
    """data/<name>, built if it is not there or of another version. A build that fails leaves what was there.

    ``check`` raises when the build cannot begin. ``build`` is given a directory that it makes; world.json comes last.
    """
    directory = ROOT / "data" / name
    if (read_json(directory / "world.json") or {}).get("version") == version:
        return directory
    check()
    fresh = directory.with_name(f".{name}.{os.getpid()}")
    try:
        build(fresh)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.replace(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


def engine_python(environment: str, title: str) -> Path:
    """The interpreter of an engine's environment below .venvs, or $SAGELIB_<ENVIRONMENT>_PYTHON. WorldMissing: no such."""
    given = os.environ.get(f"SAGELIB_{environment.upper()}_PYTHON")
    place = Path(given or ROOT / ".venvs" / environment / "bin" / "python")
    if not place.exists():
        raise WorldMissing(f"{title}'s environment is not built ({place} is missing). "
                           f"Fix: ./workbench setup --world {environment}")
    return place
