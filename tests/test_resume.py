"""A training that is killed anywhere and started again ends as if nothing had happened: bit for bit.

tests/resume_worker.py has the points and does the training (real trainer, tiny model, fake world).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from resume_worker import CASES, COPIES, KILLED, STEPS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, dict]:
    """Every case, played in one process that forks."""
    place = tmp_path_factory.mktemp("resume")
    env = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(ROOT / "tests" / "resume_worker.py"), str(place)]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_uninterrupted_training_teaches_something(ended) -> None:
    straight = ended["straight"]
    rows = [row for row in straight["rows"] if "loss" in row]
    played = [row for row in straight["rows"] if row.get("kind") == "rollout"]
    assert straight["codes"] == [0] and straight["weights"]
    assert [row["step"] for row in rows] == [row["step"] for row in played] == list(range(1, STEPS + 1))
    assert all(row["grad_norm"] > 0 for row in rows) and len({row["return_mean"] for row in played}) > 1
    assert len(straight["episodes"]) == len(set(straight["episodes"])) == STEPS * COPIES


@pytest.mark.parametrize("case", CASES)
def test_a_killed_training_goes_on_as_if_nothing_had_happened(case: str, ended) -> None:
    broken, straight = ended[case], ended["straight"]
    assert broken["codes"] == [KILLED] * len(CASES[case]) + [0], broken["error"]
    assert broken["weights"] == straight["weights"]
    assert broken["rows"] == straight["rows"]
    assert broken["episodes"] == straight["episodes"]
