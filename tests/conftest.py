"""Fixtures shared by the tests. Whatever needs the real engine is skipped, with the reason, where it is not built."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def appworld_python() -> Path:
    """The AppWorld environment's interpreter."""
    python = Path(os.environ.get("SAGELIB_APPWORLD_PYTHON") or REPOSITORY / ".venvs" / "appworld" / "bin" / "python")
    if not python.exists():
        pytest.skip(f"the AppWorld environment is not built ({python}); build it with ./workbench setup")
    return python


@pytest.fixture(scope="session")
def mini_world() -> Path:
    """The generated world data/mini, or the one that $SAGELIB_TEST_WORLD names."""
    world = Path(os.environ.get("SAGELIB_TEST_WORLD") or REPOSITORY / "data" / "mini")
    for part in ("agent", "judge"):
        if not any((world / part / "data" / "tasks").glob("*_1/specs.json")):
            pytest.skip(
                f"the generated world is not built ({world / part} has no tasks); build it with ./workbench setup"
            )
    return world
