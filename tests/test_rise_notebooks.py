"""SkillRise's notebooks, executed in the smoke profile by the package's own runner in the generated shop."""
import json

import pandas as pd
import pytest
from smoke_runs import directory, finish, results

from sagelib import cli
from sagelib.rise_graph import RISE
from sagelib.rise_sequences import check_disjoint, read

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def finished():
    """(notebook, method) -> record of its finished smoke run."""
    return finish("29_skillrise_figures")


def test_all_of_them_are_done_fast_and_in_the_shop(finished):
    assert {name for name, _ in finished} == {step.notebook for step in RISE} and len(finished) == 1 + 3 + 4 + 2 + 1
    assert {r["status"] for r in finished.values()} == {"done"}
    assert {r["world"]["name"] for r in finished.values()} == {"shop-smoke"}
    slow = {k: r["seconds"] for k, r in finished.items() if r["seconds"] > 180}   # 60 s alone on two free cores
    assert not slow


def test_methods_train_on_equal_numbers_of_episodes_and_on_no_test_task(finished):
    for method, episodes_per_trial in (("skillrise", 3), ("no_carry", 3), ("grpo", 1)):
        record = finished["20_skillrise_train", method]
        trials = [json.loads(line) for line in (directory(record) / "episodes.jsonl").read_text().splitlines()]
        assert {len(t["episodes"]) for t in trials} == {episodes_per_trial}
        assert sum(len(t["episodes"]) for t in trials) == results(record)["episodes"] == 2 * 12
        assert {len(t["curations"]) for t in trials} == ({2} if method == "skillrise" else {0})
        assert results(record)["steps"] == 2
    trained = read(directory(finished["20_skillrise_train", "skillrise"]) / "manifest.json")
    panel = read(directory(finished["21_skillrise_evaluate", "skillrise"]) / "panel.json")
    check_disjoint(trained, panel, read(directory(finished["19_skillrise_sft", None]) / "manifest_demos.json"))


def test_what_was_sampled_is_what_is_trained(finished):
    where = directory(finished["20_skillrise_train", "skillrise"])
    for line in (where / "episodes.jsonl").read_text().splitlines()[:4]:
        for episode in json.loads(line)["episodes"]:
            segment = episode["segment"]
            own = [i for i, m in zip(segment["completion_ids"], segment["own_mask_T"], strict=True) if m]
            assert own == [i for turn in episode["turns"] for i in turn["token_ids"]]


def test_the_table_has_every_method_position_and_document(finished):
    path = directory(finished["29_skillrise_figures", None]) / "results" / "table_skillrise.csv"
    table = pd.read_csv(path, dtype={"run_id": str})
    assert list(table) == ["world", "method", "seed", "position", "document", "pass_at_1", "n_tasks", "run_id"]
    carried = {(1, "empty")} | {(k, d) for k in (2, 3) for d in ("evolved", "empty", "shuffled", "other")}
    for method in ("sft", "skillrise"):
        part = table[table["method"] == method]
        assert set(zip(part["position"], part["document"], strict=True)) == carried
    for method in ("no_carry", "grpo"):
        part = table[table["method"] == method]
        assert set(zip(part["position"], part["document"], strict=True)) == {(k, "none") for k in (1, 2, 3)}
    assert (table["n_tasks"] == 2).all() and table["pass_at_1"].between(0, 100).all()
    assert set(table["world"]) == {"shop-smoke"} and set(table["run_id"]) == {
        r["run_id"] for (name, _), r in finished.items() if name == "21_skillrise_evaluate"}
    assert (path.parent / "skillrise_positions.pdf").exists()


def test_the_other_tables(finished):
    where = directory(finished["29_skillrise_figures", None]) / "results"
    attempts, scaling, costs = (pd.read_csv(where / f"table_skillrise_{name}.csv") for name in ("attempts", "scaling", "costs"))
    methods = ("sft", "grpo", "no_carry", "skillrise")
    assert attempts.groupby("method")["k"].apply(list).to_dict() == dict.fromkeys(methods, [1, 2])
    assert attempts.groupby("method")["pass_at_k"].apply(lambda p: p.is_monotonic_increasing).all()
    assert set(zip(scaling["method"], scaling["K"], strict=True)) == {(m, K) for m in ("skillrise", "no_carry") for K in (1, 2)}
    assert (scaling["n_tasks"] == 4).all()
    assert set(costs["method"]) == {"skillrise", "no_carry", "grpo"}
    assert costs.set_index("method")["relative"]["no_carry"] == 1


def test_a_beginning_of_a_name_is_enough(finished):
    assert cli.whole_name("20") == "20_skillrise_train" and cli.whole_name("2") == "2"   # four begin so
    assert cli.is_rise("22") and not cli.is_rise("10")
    good, scheduler = cli.reproduce("smoke", seeds=[0], notebook="20")
    assert good and {r["run_id"] for r in scheduler.records.values()} <= {r["run_id"] for r in finished.values()}
