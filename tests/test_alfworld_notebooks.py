"""SkillRise's notebooks in ALFWorld: demonstrations, training and evaluation in the smoke profile, in the real engine."""
import json

import pandas as pd
import pytest
from smoke_runs import directory, finish, results

from sagelib import alfworld
from sagelib.rise_sequences import check_disjoint, read

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def finished():
    """(notebook, method) -> record of its finished smoke run."""
    try:
        alfworld.python()
    except alfworld.AlfworldMissing as error:
        pytest.skip(str(error))
    return finish("21_skillrise_evaluate", world="alfworld-smoke")


def test_all_of_them_are_done_in_the_houses(finished):
    assert len(finished) == 1 + 3 + 4 and {r["status"] for r in finished.values()} == {"done"}
    assert {r["world"]["name"] for r in finished.values()} == {"alfworld-smoke"}


def test_the_expert_in_the_notebook_gains_from_its_document(finished):
    players = results(finished["19_skillrise_sft", None])["players"]
    assert len(players["the expert alone, document"]) == 3 and max(players["the expert alone, document"]) == 100


def test_the_loop_is_the_shop_s(finished):
    trained = read(directory(finished["20_skillrise_train", "skillrise"]) / "manifest.json")
    panel = read(directory(finished["21_skillrise_evaluate", "skillrise"]) / "panel.json")
    check_disjoint(trained, panel, read(directory(finished["19_skillrise_sft", None]) / "manifest_demos.json"))
    assert trained.plan["difficulty"] == "plan_length" and trained.rise > 0
    lines = (directory(finished["20_skillrise_train", "skillrise"]) / "episodes.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    assert len(trials) == 8 and {len(t["curations"]) for t in trials} == {2}
    assert {e["stop"] for t in trials for e in t["episodes"]} <= {"max_turns", "completed", "context_full"}
    table = pd.DataFrame(results(finished["21_skillrise_evaluate", "skillrise"])["table"])
    assert set(table["document"]) == {"evolved", "empty", "shuffled", "other"} and (table["n_tasks"] == 2).all()
