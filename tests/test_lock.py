"""The lock has what pyproject.toml asks for and what that needs, nothing else, and no address."""
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from sagelib import lock

LOCKED = lock.read()


def installed_as_locked(name):
    try:
        return metadata.version(name).split("+")[0] == LOCKED[lock.canonical(name)]
    except metadata.PackageNotFoundError:
        return False


def test_everything_that_is_asked_for_is_locked_inside_its_range():
    for requirement in map(Requirement, lock.wanted()):
        locked = LOCKED[lock.canonical(requirement.name)]
        assert requirement.specifier.contains(locked), f"{requirement}, but {lock.LOCK.name} has {locked}: python -m sagelib.lock"


def test_what_the_locked_releases_need_is_locked_inside_its_range_and_nothing_else():
    """Read from the installed packages' own metadata, so only where they are the locked releases."""
    def needs(name, extras):
        return lock.needs(name, extras) if installed_as_locked(name) else []

    followed = lock.closure(lock.wanted(), needs)
    for requirement in followed:
        locked = LOCKED.get(lock.canonical(requirement.name))
        assert locked and requirement.specifier.contains(locked, prereleases=True), f"{requirement}: locked is {locked}"
    others = sorted(name for name in LOCKED if not installed_as_locked(name))
    if others:
        pytest.skip(f"{len(others)} packages are here in other releases than the lock's ({', '.join(others[:5])}, ...), so what "
                    "those need is not known; ./workbench setup --locked installs them")
    assert {lock.canonical(requirement.name) for requirement in followed} == set(LOCKED)
    assert lock.make() == lock.LOCK.read_text()


def test_it_is_a_plain_list_without_addresses():
    lines = [line for line in lock.LOCK.read_text().splitlines() if not line.startswith("#")]
    assert list(LOCKED) == sorted(LOCKED) and len(lines) == len(LOCKED) > 100
    assert "://" not in lock.LOCK.read_text()
    assert all(sign not in line for line in lines for sign in ("/", "@", " ", "+"))


@pytest.mark.parametrize("line", ["torch>=2.13", "torch==2.13.0+cpu", "torch @ file.whl", "-i index", "Torch==2.13.0",
                                  "a==1\na==1"])
def test_anything_else_in_it_is_refused(tmp_path, line):
    (tmp_path / "lock").write_text(f"numpy==2.4.6\n{line}\n")
    with pytest.raises(ValueError, match="is not name==release"):
        lock.read(tmp_path / "lock")


def test_extras_and_markers_are_followed():
    made = {"a": ["b[fast]>=1", "c; sys_platform == 'win32'"], "b": ["d; extra == 'fast'", "e; extra == 'slow'"], "d": ["a"]}

    def needs(name, extras):
        return [r for r in map(Requirement, made.get(name, []))
                if r.marker is None or any(r.marker.evaluate(lock.MACHINE | {"extra": e}) for e in ("", *extras))]

    assert [str(r) for r in lock.closure(["a"], needs)] == ["a", "b[fast]>=1", 'd; extra == "fast"', "a"]
