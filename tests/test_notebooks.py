"""Every notebook, executed in the smoke profile by the package's own runner on the real engine."""

import json

import pandas as pd
import pytest
from conftest import unavailable

from sagelib import cli, datasets, runs

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def finished():
    """notebook (and method) -> directory of its finished smoke run."""
    if not (datasets.REPOSITORY / "data" / "smoke" / "datasets.json").exists():
        unavailable("the smoke world is not generated; ./workbench test (or ./workbench setup --profile smoke) makes it")
    good, scheduler = cli.reproduce("smoke", seeds=[0])
    assert good, scheduler.summary()
    return {(r["notebook"], r["parameters"].get("method")): r for r in scheduler.records.values()}


def directory(record):
    return runs.runs_root() / "smoke" / f"{record['notebook']}-{record['run_id']}"


def results(record):
    return json.loads((directory(record) / "results.json").read_text())


def test_all_notebooks_are_done_and_fast(finished):
    assert {name for name, _ in finished} == {p.stem for p in (datasets.REPOSITORY / "notebooks").glob("*.ipynb")}
    assert {r["status"] for r in finished.values()} == {"done"}
    assert all(r["world"]["name"] == "smoke" for r in finished.values() if r["notebook"] != "90_figures")
    slow = {k: r["seconds"] for k, r in finished.items() if r["seconds"] > 180}   # 60 s alone on two free cores
    assert not slow


def test_tour_solves_three_tasks_and_reuses_skills(finished):
    tour = results(finished["00_tour", None])
    assert tour["solved"] == [True, True, True]
    assert tour["called"][0] == []
    assert len(tour["called"][1]) >= 1 and tour["called"][1] == tour["called"][2]


def test_the_expert_passes_the_judge(finished):
    collected = results(finished["01_collect", None])
    assert collected["rejected"] == 0 and collected["accepted"] == collected["played"] > 0
    assert {"skills", "plain"} <= set(collected["modes"])


def test_training_takes_real_steps_and_records_what_was_sampled(finished):
    for method in ("sft_grpo", "sage"):
        where = directory(finished["03_train", method])
        assert results(finished["03_train", method])["steps"] == 2
        chains = [json.loads(line) for line in (where / "episodes.jsonl").read_text().splitlines()]
        assert sum(len(c["episodes"]) for c in chains) == 16   # 2 steps of 8 episodes
        segment = chains[0]["episodes"][0]["segment"]
        own = [i for i, m in zip(segment["completion_ids"], segment["own_mask_T"], strict=True) if m]
        sampled = [i for turn in chains[0]["episodes"][0]["turns"] for i in turn["token_ids"]]
        assert own == sampled


def test_the_main_table_has_all_methods_and_splits(finished):
    path = directory(finished["90_figures", None]) / "results" / "table_main.csv"
    table = pd.read_csv(path, dtype={"run_id": str})
    assert set(table["method"]) == {"base", "sft", "sft_grpo", "sage"} and set(table["split"]) == {"test_normal", "test_challenge"}
    assert len(table) == 8 and set(table["world"]) == {"smoke"} and (table["n_tasks"] == 6).all()
    assert table["tgc"].between(0, 100).all() and table["run_id"].nunique() == 4


def test_a_second_reproduce_runs_nothing(finished):
    before = {k: r["ended"] for k, r in finished.items()}
    good, scheduler = cli.reproduce("smoke", seeds=[0])
    after = {(r["notebook"], r["parameters"].get("method")): r["ended"] for r in scheduler.records.values()}
    assert good and after == before
