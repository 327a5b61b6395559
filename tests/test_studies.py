"""Studies: their nodes share runs with the main job and with each other; a run that is not there is a gap, never a zero."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import smoke_runs
from notebook_maker import FINISH, OPEN, PARAMETERS, make
from test_evaluate import rows

from sagelib import ablations, cli, figures, published, runs, tables
from sagelib.ablations import STUDIES
from sagelib.config import EvalConfig, FiguresConfig, SelfDistillConfig, TrainConfig
from sagelib.graph import Cell, Node, Study, add_studies, expand, node_name, only
from sagelib.parameters import declared
from sagelib.rise_graph import VERSUS, rise_nodes
from sagelib.runs import ROOT, RunError
from sagelib.scheduler import Scheduler

CONFIGS = {"03_train": TrainConfig, "04_evaluate": EvalConfig, "05_self_distill": SelfDistillConfig}


def grid(profile="laptop", seeds=(0, 1)):
    return add_studies(expand(cli.GRAPH, profile, seeds), STUDIES, profile, seeds)


# ---- the grid

@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.notebook)
@pytest.mark.parametrize("profile", ["smoke", "laptop"])
def test_every_cell_fits_its_notebooks_and_makes_a_config(study, profile):
    assert {"profile", "seeds", "missing"} == set(declared(ROOT / "notebooks" / f"{study.notebook}.ipynb"))
    cells = study.of(profile).cells
    assert len({cell.label for cell in cells}) == len(cells) and (cells or study.needs)
    for cell in cells:
        for notebook, parameters in cell.path[1:]:
            assert set(parameters) <= set(declared(ROOT / "notebooks" / f"{notebook}.ipynb")), (cell.label, notebook)
            assert CONFIGS[notebook].from_parameters(profile, seed=1, **parameters).seed == 1


@pytest.mark.parametrize("cell", [c for s in STUDIES for c in s.cells if len(c.path) > 2], ids=lambda c: c.label)
def test_every_training_has_the_main_job_s_budget(cell):
    main = TrainConfig.from_parameters("laptop", method="sage")
    trainings = [TrainConfig.from_parameters("laptop", **given) for notebook, given in cell.path if notebook == "03_train"]
    assert trainings and cell.path[-2][0] == "03_train"
    for config in trainings:
        assert config.steps * config.episodes_per_step == pytest.approx(main.steps * main.episodes_per_step, rel=0.02)


def test_equal_runs_are_one_node_and_the_main_table_is_unchanged():
    main, nodes = expand(cli.GRAPH, "laptop", [0, 1]), grid()
    assert nodes[: len(main)] == main and all(node.main for node in main) and not any(n.main for n in nodes[len(main) :])
    trainings = [n for n in nodes if n.notebook == "03_train"]
    assert len({(n.notebook, json.dumps(n.parameters, sort_keys=True)) for n in trainings}) == len(trainings)
    assert all(max(node.needs, default=-1) < i for i, node in enumerate(nodes))
    reward = next(n for n in nodes if n.notebook == "10_ablate_reward")
    needed = [nodes[i].name for i in reward.needs]
    assert {"03_train sage seed 1", "04_evaluate sage seed 1", "03_train sage credit=chain seed 0"} <= set(needed)
    assert len(needed) == 2 * 2 * 4 and reward.gaps and reward.parameters == {"profile": "laptop", "seeds": [0, 1]}
    evaluation = next(n for n in nodes if n.notebook == "04_evaluate" and not n.main and n.seed == 1)
    assert [nodes[i].name for i in evaluation.needs] == ["02_sft seed 1", "03_train sage credit=outcome seed 1"]


def test_only_a_study_chooses_its_cells_and_only_a_main_notebook_the_main_runs():
    nodes = grid()
    chosen = [nodes[i] for i in only(nodes, "13_ablate_initialization")]
    assert sorted({n.notebook for n in chosen}) == ["01_collect", "02_sft", "03_train", "04_evaluate", "05_self_distill",
                                                    "13_ablate_initialization"]
    others = [n.name for n in chosen if n.notebook == "03_train" and "init" in n.parameters]
    starts = ("sage init=base", "sage init=self_distilled", "sft_grpo init=base", "sage init=rl_warm_up")
    assert sorted(others) == sorted(f"03_train {start} seed {s}" for start in starts for s in (0, 1))
    assert {nodes[i].name for i in only(nodes, "03_train")} == {
        "01_collect", *(f"02_sft seed {s}" for s in (0, 1)),
        *(f"03_train {m} seed {s}" for m in ("sage", "sft_grpo") for s in (0, 1))}
    assert {s.notebook for s in STUDIES} <= {nodes[i].notebook for i in only(nodes, "91_tables")}


def test_the_runs_that_the_tests_make_are_those_of_all_graphs():
    nodes, chosen = smoke_runs.everything()
    main, shop, code = grid(profile="smoke", seeds=[0]), rise_nodes("smoke", [0]), rise_nodes("smoke", [0], "appworld-smoke")
    assert [n.name for n in nodes] == [n.name for part in (main, shop, code) for n in part]
    first = 0
    for part in (main, shop, code):   # each table's needs are its own
        assert [n.needs for n in nodes[first : first + len(part)]] == [tuple(first + k for k in n.needs) for n in part]
        first += len(part)
    assert {nodes[i].notebook for i in set(range(len(nodes))) - chosen} == {"22_skillrise_scaling", "29_skillrise_figures"}
    assert chosen >= set(range(len(main) + len(shop))) and nodes[max(chosen)].notebook == VERSUS
    alone, all_of_it = smoke_runs.everything(engine=False)
    assert [n.needs for n in alone] == [n.needs for n in shop] and all_of_it == set(range(len(shop)))


@pytest.mark.parametrize("label, made", [("self-distillation", "05_self_distill seed 1"),
                                         ("RL warm-up", "03_train sft_grpo init=base seed 1")])
def test_a_start_of_its_own_is_an_input_of_training_and_evaluation(label, made):
    nodes = grid()
    cell = next(c for s in STUDIES if s.name == "initialization" for c in s.cells if c.label == label)
    training = next(n for n in nodes if n.parameters == {"profile": "laptop", "seed": 1} | cell.path[2][1])
    evaluations = [[nodes[i].name for i in n.needs] for n in nodes if n.notebook == "04_evaluate"]
    assert [nodes[i].name for i in training.needs] == ["02_sft seed 1", made] and training.notebook == "03_train"
    assert ["02_sft seed 1", made, training.name] in evaluations
    shared = [n for n in nodes if n.name == made]
    assert len(shared) == 1 and [nodes[i].name for i in shared[0].needs] == ["02_sft seed 1"]


def test_a_cell_must_begin_in_the_main_table():
    study = Study("s", "s", (Cell("a", (("02_sft", {"seed": 5}), ("03_train", {"method": "sage"}))),))
    with pytest.raises(RunError, match="cell 'a' begins with 02_sft {'seed': 5}, which is no node"):
        add_studies(expand(cli.GRAPH, "laptop", [0]), [study], "laptop", [0])


def test_reproduce_runs_the_main_job_unless_a_study_is_named(monkeypatch):
    seen = {}

    class Recorder:
        def __init__(self, nodes, chosen, jobs, forced):
            seen.update(nodes=nodes, chosen=chosen)

        def run(self):
            return True

    monkeypatch.setattr(cli, "Scheduler", Recorder)
    cli.reproduce("laptop", [0])
    assert {seen["nodes"][i].notebook for i in seen["chosen"]} == {step.notebook for step in cli.GRAPH}
    cli.reproduce("laptop", [0], "12_ablate_retrieval")
    retrievals = [n.parameters["retrieval"] for n in (seen["nodes"][i] for i in seen["chosen"]) if "retrieval" in n.parameters]
    assert len(retrievals) == 8
    whole = seen["chosen"]
    cli.reproduce("laptop", [0], "12")                                  # the start of one name
    assert seen["chosen"] == whole
    cli.reproduce("laptop", [0], "05")                                  # a notebook of cells alone, without what needs it
    assert {seen["nodes"][i].notebook for i in seen["chosen"]} == {"01_collect", "02_sft", "05_self_distill"}
    with pytest.raises(RunError, match="05_self_distill is of the profiles laptop and smoke; --profile gpu has: 00_tour"):
        cli.reproduce("gpu", [0], "05_self_distill")
    with pytest.raises(RunError, match="no notebook '1'.*12_ablate_retrieval"):
        cli.reproduce("laptop", [0], "1")


# ---- gaps

def test_a_study_runs_on_what_is_done_and_is_told_what_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    good, bad, behind, study = (str(tmp_path / f"{n}.ipynb") for n in ("good", "bad", "behind", "study"))
    make(Path(good), OPEN, FINISH)
    make(Path(bad), OPEN, "1 / 0", FINISH)
    make(Path(behind), OPEN, FINISH)
    end = "run.finish({'missing': missing, 'n': len(run.inputs('good'))})"
    make(Path(study), OPEN, end, parameters=PARAMETERS + "\nmissing = {}")
    own = {"profile": "smoke"}
    nodes = [Node("good", good, own, None, (), None), Node("bad", bad, own, None, (), None),
             Node("behind", behind, own, None, (1,), None),
             Node("study", study, own, None, (0, 1, 2), None, main=False, gaps=True)]
    scheduler = Scheduler(nodes, {0, 1, 2, 3}, jobs=2)
    assert scheduler.run() is False and scheduler.records[3]["status"] == "done"
    results = json.loads((Path(scheduler.records[3]["directory"]) / "results.json").read_text())
    assert results["n"] == 1 and results["missing"]["behind"] == "not run: needs bad, which is not done"
    assert results["missing"]["bad"].startswith("failed: ZeroDivisionError: division by zero") and len(results["missing"]) == 2


SAGE = ("03_train", {"method": "sage"})
CHAIN = ("03_train", {"method": "sage", "credit": "chain"})
CELLS = (Cell("A", (ablations.SFT, SAGE, ("04_evaluate", {"method": "sage"}))),
         Cell("B", (ablations.SFT, CHAIN, ("04_evaluate", {"method": "sage"}))))


class FakeRun:
    """A run whose inputs are directories with a record and an episodes.csv."""

    def __init__(self, directory):
        self.directory = directory

    def add(self, name, seed, train, successes, *before):
        place = self.directory / name
        place.mkdir()
        inputs = [{"notebook": notebook, "parameters": {"profile": "smoke", "seed": seed} | given, "directory": "."}
                  for notebook, given in (ablations.SFT, *before, train)]
        record = {"run_id": name, "notebook": "04_evaluate", "seed": seed, "status": "done", "inputs": inputs,
                  "parameters": {"profile": "smoke", "seed": seed, "method": "sage"}}
        (place / "run.json").write_text(json.dumps(record))
        data = rows(successes, method="sage", seed=seed, split="test_normal", world="smoke", run_id=name)
        data.to_csv(place / "episodes.csv", index=False)

    def inputs(self, notebook):
        return sorted(self.directory.iterdir()) if notebook == "04_evaluate" else []


@pytest.fixture
def gathered(tmp_path):
    """Cell A with seeds 0 and 1, cell B with seed 0 alone."""
    run = FakeRun(tmp_path)
    run.add("a0", 0, SAGE, {"s": [True, True, True], "t": [True, False, False]})
    run.add("a1", 1, SAGE, {"s": [True, True, True], "t": [True, True, True]})
    run.add("b0", 0, CHAIN, {"s": [True, True, True], "t": [False, False, False]})
    missing = {node_name(*CHAIN, 1): "failed: it broke", "04_evaluate sage seed 1": "not run: needs something"}
    return tables.gather(run, CELLS, [0, 1], missing)


def test_cells_are_told_apart_by_their_training_and_gaps_keep_their_reason(gathered):
    episodes, gaps = gathered
    table = tables.study_table(episodes, gaps, CELLS)
    assert table[["cell", "seed", "run_id"]].fillna("-").values.tolist() == [
        ["A", 0, "a0"], ["A", 1, "a1"], ["B", 0, "b0"], ["B", 1, "-"]]
    assert table["tgc"].iloc[:3].tolist() == pytest.approx([100 * 4 / 6, 100, 50]) and np.isnan(table["tgc"].iloc[3])
    assert table["reason"].tolist() == ["", "", "", "03_train sage credit=chain seed 1: failed: it broke"]
    main = ["method", "seed", "split", "world", "run_id", "tgc", "sgc", "steps", "tokens", "skill_use", "success_when_used",
            "n_tasks", "n_scenarios", "n_episodes", "env_failures"]
    assert list(table.columns) == ["cell", *main, "reason"]
    means = tables.over_seeds(table)
    assert means.loc[("test_normal", "A"), "tgc"] == pytest.approx(100 * 10 / 12) and means["seeds"].tolist() == [2, 1]


def test_two_runs_of_one_notebook_on_a_cell_s_path_are_both_compared(tmp_path):
    """SAGE after a warm-up is neither SAGE alone nor SAGE after another warm-up."""
    warm, last = ablations.WARM_UP, ("03_train", {"method": "sage", "init": "rl_warm_up"})
    end = ("04_evaluate", {"method": "sage"})
    cells = [Cell("warm", (ablations.SFT, warm, last, end)), Cell("other", (ablations.SFT, SAGE, last, end)),
             Cell("alone", (ablations.SFT, last, end))]
    run = FakeRun(tmp_path)
    run.add("w0", 0, last, {"s": [True, True, True]}, warm)
    episodes, gaps = tables.gather(run, cells, [0], {})
    assert set(episodes["cell"]) == {"warm"} and gaps["cell"].tolist() == ["other", "alone"]
    run.add("x0", 0, last, {"s": [False, True, True]})
    assert [directory and directory.name for directory in (tables.find(run, cell, 0) for cell in cells)] == ["w0", None, "x0"]


def test_differences_are_paired_on_the_seeds_that_both_have(gathered):
    episodes, _ = gathered
    found = tables.differences(episodes, "A").set_index("metric")
    assert found.loc["tgc", "difference"] == pytest.approx(50 - 100 * 4 / 6) and set(found["a"]) == {"B"}
    assert tables.differences(episodes, "Z").empty


def test_a_study_without_any_run_is_all_gaps(tmp_path):
    episodes, gaps = tables.gather(FakeRun(tmp_path), CELLS, [0], {})
    table = tables.study_table(episodes, gaps, CELLS)
    assert table["cell"].tolist() == ["A", "B"] and table.get("tgc", pd.Series([np.nan])).isna().all()
    assert table["reason"].tolist() == ["no finished run of 04_evaluate sage seed 0"] * 2
    assert tables.over_seeds(table).empty and tables.differences(episodes, "A").empty


def test_a_gap_has_no_number_in_the_figure_s_data(gathered):
    episodes, _ = gathered
    _, data = figures.study_figure(episodes, ["A", "B", "C"], "test_normal")
    by = data.set_index(["cell", "metric"])
    assert by.loc[("C", "tgc"), "n_seeds"] == 0 and np.isnan(by.loc[("C", "tgc"), "mean"])
    assert by.loc[("A", "tgc"), "mean"] == pytest.approx(100 * 10 / 12) and by.loc[("A", "tgc"), "n_seeds"] == 2


# ---- skills

LOGIN = "def login(app):\n    me = apis.supervisor.show_profile()\n    return apis[app].login(username=me)"
LIKE = "def like(value):\n    token = login('x')\n    for row in pages(apis.spotify.show_songs, token):\n        pass"


def test_api_calls_are_counted_in_the_text():
    assert tables.api_calls(LOGIN) == 2 and tables.api_calls(LIKE) == 1 and tables.api_calls("def f(x):\n    return x.y.z") == 0


def test_skills_are_counted_with_their_users(tmp_path):
    def episode(made, called, success):
        return {"scenario_id": "s", "skills_made": made, "skills_called": called, "success": success}

    libraries = [{"login": LOGIN, "like": LIKE}] * 2 + [{"login": LOGIN, "like": LIKE, "x": "def x():\n    pass"}]
    played = [episode(["login", "like"], [], True), episode([], ["like"], False), episode(["x", "login"], ["like"], True)]
    chain = {"episodes": played, "libraries": libraries}
    (tmp_path / "episodes_dev.jsonl").write_text(json.dumps(chain) + "\n")
    skills = tables.skill_rows(tmp_path)
    assert skills[["name", "position", "api_calls", "called", "called_solved"]].values.tolist() == [
        ["login", 0, 2, 0, 0], ["like", 0, 3, 2, 1], ["x", 2, 0, 0, 0], ["login", 2, 2, 0, 0]]
    summary = tables.skill_summary(skills)
    assert (summary["skills"], summary["used"], summary["multi_api"], summary["solved_when_used"]) == (4, 1, 75.0, 50.0)
    assert tables.skill_summary(skills.iloc[:0])["multi_api"] is None


# ---- the paper's numbers

def test_published_rows_name_cells_of_the_study_or_say_that_they_are_another():
    for study in STUDIES:
        ours, theirs = {cell.label for cell in study.cells}, set(published.study(study.name)["cell"])
        assert not theirs or ours & theirs, study.name
    assert published.study("reward").loc[0, ["tgc", "sgc"]].tolist() == [72.0, 60.7] and published.study("nope").empty
    assert all("another world" in text for text in published.study("retrieval")["source"])


def test_figures_config_takes_what_is_missing():
    assert FiguresConfig.from_parameters("laptop", missing={"a": "b"}).missing == {"a": "b"}
    assert runs.ROOT == ROOT
