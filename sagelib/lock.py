"""The lock: the exact release of every package of .venvs/main, direct and indirect, as a constraints file of pip.

pyproject.toml stays the one list of what is wanted; the lock says which releases were tested with it. It names no index and no
address. `python -m sagelib.lock` in a fresh .venvs/main writes it anew.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "linux-py311.txt"
MACHINE = {"python_version": "3.11", "python_full_version": "3.11.7", "sys_platform": "linux", "platform_system": "Linux",
           "os_name": "posix", "platform_machine": "x86_64", "implementation_name": "cpython",
           "platform_python_implementation": "CPython"}   # for which the lock is
HEAD = """\
# The releases with which this repository was tested: .venvs/main on Linux with Python 3.11. A constraints file of pip:
#   ./workbench setup --locked
# What pyproject.toml asks for and what that needs, nothing else (tests/test_lock.py). Written by: python -m sagelib.lock
"""


def canonical(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(path: Path = LOCK) -> dict[str, str]:
    """Package -> release. ValueError for a line that is anything but ``name==release``, or a package named twice."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line:
            continue
        pinned = re.fullmatch(r"([a-z0-9]+(?:-[a-z0-9]+)*)==([0-9][0-9a-z.]*)", line)
        if not pinned or pinned[1] in found:
            raise ValueError(f"{path.name}: {line!r} is not name==release, or the second line of a package")
        found[pinned[1]] = pinned[2]
    return found


def wanted() -> list[str]:
    """What `./workbench setup` installs into .venvs/main, as pyproject.toml has it."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, tool = data["project"], data["tool"]["workbench"]
    extras = [line for extra in tool["extras"] for line in project["optional-dependencies"][extra]]
    return [*tool["first"], *project["dependencies"], *extras]


def needs(name: str, extras: Iterable[str]) -> list[Requirement]:
    """What the installed package asks for on the lock's machine, with these extras of it."""
    lines = metadata.requires(name) or []
    found = []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or any(requirement.marker.evaluate(MACHINE | {"extra": e}) for e in ("", *extras)):
            found.append(requirement)
    return found


def closure(lines: Iterable[str], needs: Callable[[str, Iterable[str]], list[Requirement]] = needs) -> list[Requirement]:
    """Every requirement that follows from these lines, directly or not, each package with each set of extras once."""
    todo, seen, found = [Requirement(line) for line in lines], set(), []
    while todo:
        requirement = todo.pop()
        found.append(requirement)
        key = canonical(requirement.name), frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            todo += needs(requirement.name, requirement.extras)
    return found


def make() -> str:
    """The lock of the environment that runs this. A CUDA or CPU build of a release is the same release."""
    names = {canonical(requirement.name) for requirement in closure(wanted())}
    return HEAD + "".join(f"{name}=={metadata.version(name).split('+')[0]}\n" for name in sorted(names))


if __name__ == "__main__":
    if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
        sys.exit(f"the lock is of Linux and Python 3.11, this is {sys.platform} and {sys.version.split()[0]}")
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(make())
    print(f"{LOCK}: {len(read())} packages")
