"""SkillRise's notebooks in ALFWorld and ScienceWorld: demonstrations, training, evaluation in the smoke profile, real engines."""
import json

import pandas as pd
import pytest
from conftest import or_skip
from smoke_runs import directory, finish, results

from sagelib import alfworld, scienceworld
from sagelib.rise_sequences import check_disjoint, read

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module", params=[alfworld, scienceworld], ids=["alfworld", "scienceworld"])
def world(request):
    or_skip(request.param.python)
    return request.param


@pytest.fixture(scope="module")
def name(world):
    return f"{world.__name__.removeprefix('sagelib.')}-smoke"


@pytest.fixture(scope="module")
def finished(name):
    """(notebook, method) -> record of its finished smoke run."""
    return finish("21_skillrise_evaluate", world=name)


def test_all_of_them_are_done_in_this_world(world, name, finished):
    assert len(finished) == 1 + 3 + 4 and {r["status"] for r in finished.values()} == {"done"}
    assert {r["world"]["name"] for r in finished.values()} == {name}
    record = json.loads((world.ensure(name) / "world.json").read_text())
    assert {r["world"]["hash"] for r in finished.values()} == {record["hash"]}


def test_the_expert_in_the_notebook_gains_from_its_document(world, finished):
    solved = results(finished["19_skillrise_sft", None])["players"]["the expert alone, document"]
    assert len(solved) == 3 and max(solved) == 100
    if world is scienceworld:   # there the document answers every later task
        assert solved[1:] == [100, 100]


def test_splits_share_nothing_and_no_attempt_is_lost(name, finished):
    trained = read(directory(finished["20_skillrise_train", "skillrise"]) / "manifest.json")
    panel = read(directory(finished["21_skillrise_evaluate", "skillrise"]) / "panel.json")
    check_disjoint(trained, panel, read(directory(finished["19_skillrise_sft", None]) / "manifest_demos.json"))
    assert (trained.plan["world"], trained.plan["difficulty"]) == (name, "plan_length") and trained.rise > 0
    lines = (directory(finished["20_skillrise_train", "skillrise"]) / "episodes.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    assert len(trials) == 8 and {len(t["curations"]) for t in trials} == {2}
    assert {e["stop"] for t in trials for e in t["episodes"]} <= {"max_turns", "completed", "context_full"}
    table = pd.DataFrame(results(finished["21_skillrise_evaluate", "skillrise"])["table"])
    assert set(table["document"]) == {"evolved", "empty", "shuffled", "other"} and (table["n_tasks"] == 2).all()
