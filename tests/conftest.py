"""Fixtures shared by the tests.

Whatever needs the real engine is skipped, with the reason, where it is not built. Under `./workbench test`, which builds
it ($SAGELIB_TEST_REQUIRES), a missing part is a failure: green must mean that the engine was tried.

In a run of many tests the smoke notebooks are executed beside the others from the start (`smoke_runs.start`).

torch has one thread here and in what a test starts. The models are so small that a second one only waits, and it waits by
spinning: beside other work it took ten times the processor time (`tests/test_chat.py`: 14.6 s instead of 1.7).
"""

import os
from pathlib import Path

import hypothesis
import pytest
import smoke_runs

from sagelib import building
from sagelib.text_files import WorldMissing

REPOSITORY = Path(__file__).resolve().parent.parent
TEST_WORLD = Path(os.environ.get("SAGELIB_TEST_WORLD") or REPOSITORY / "data" / "smoke")


def pytest_configure() -> None:
    """One thread, said before any test module imports torch; and what is started here keeps its byte code for the next.

    Property tests say what holds, not how fast: hypothesis' 200 ms an example failed three of them on a machine with other work.
    """
    hypothesis.settings.register_profile("no deadline", deadline=None)
    hypothesis.settings.load_profile("no deadline")
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


MANY = 100   # tests before it pays to execute notebooks beside them


def pytest_collection_finish(session) -> None:
    """Notebooks that tests will ask for are begun now; of two processes with tests the first one begins them."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return
    with_runs = [item for item in session.items if {"finished", "studied"} & set(getattr(item, "fixturenames", ()))]
    if with_runs and len(session.items) - len(with_runs) > MANY and not session.config.option.collectonly:
        smoke_runs.start()


def pytest_sessionfinish() -> None:
    smoke_runs.stop()


def unavailable(reason: str) -> None:
    """Skip; fail where the part was promised."""
    (pytest.fail if os.environ.get("SAGELIB_TEST_REQUIRES") else pytest.skip)(reason)


def or_skip(make):
    """What `make` gives; skips with its sentence where a text world's engine, which no command promises, is not there."""
    try:
        return make()
    except WorldMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """An empty checkout for what builds environments and worlds: it has pyproject.toml and nothing else."""
    (tmp_path / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setattr(building, "VENVS", tmp_path / ".venvs")
    return tmp_path


@pytest.fixture(scope="session")
def appworld_python() -> Path:
    """The AppWorld environment's interpreter."""
    python = Path(os.environ.get("SAGELIB_APPWORLD_PYTHON") or REPOSITORY / ".venvs" / "appworld" / "bin" / "python")
    if not python.exists():
        unavailable(f"the AppWorld environment is not built ({python}); build it with ./workbench setup")
    return python


@pytest.fixture(scope="session")
def mini_world() -> Path:
    """The generated world data/smoke, or the one that $SAGELIB_TEST_WORLD names."""
    world = TEST_WORLD
    for part in ("agent", "judge"):
        if not any((world / part / "data" / "tasks").glob("*_1/specs.json")):
            unavailable(
                f"the generated world is not built ({world / part} has no tasks); build it with ./workbench setup --profile smoke"
            )
    return world
