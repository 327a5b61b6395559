"""Scores, intervals and figures: closed-form expectations."""

import hashlib

import numpy as np
import pandas as pd
import pytest

from sagelib import chaining, datasets, figures, stats
from sagelib.evaluate import COLUMNS
from sagelib.scores import summarise
from sagelib.types import Chain


def rows(successes: dict[str, list[bool]], play: int = 0, **extra) -> pd.DataFrame:
    """One row per task; every list is a scenario."""
    data = [{"scenario_id": s, "play": play, "family": f"family of {s}", "task_id": f"{s}_{k + 1}", "position": k, "scored": True, "success": ok,
             "fraction": float(ok), "stop": "completed", "steps": 2 + k, "tokens": 10 * (k + 1), "skills_shown": k,
             "skills_called": k % 2, "skills_made": 0, "replies_with_error": 0}
            for s, oks in successes.items() for k, ok in enumerate(oks)]
    return pd.DataFrame(data, columns=COLUMNS).assign(**extra)


def test_tgc_counts_tasks_and_sgc_whole_scenarios():
    summary = summarise(rows({"a": [True, True, True], "b": [True, False, True]}))
    assert summary["tgc"] == pytest.approx(100 * 5 / 6) and summary["sgc"] == 50.0
    assert summary["steps"] == 3 and summary["tokens"] == 20 and summary["n_tasks"] == 6 and summary["n_scenarios"] == 2


def test_skill_use_is_a_share_of_later_tasks():
    summary = summarise(rows({"a": [True, False, True], "b": [True, True, True]}))
    assert summary["skill_use"] == 50.0            # position 1 calls one, position 2 none
    assert summary["success_when_used"] == 50.0    # a_2 failed, b_2 passed


def test_unscored_tasks_are_left_out_and_counted():
    table = rows({"a": [True, True, True], "b": [True, True, True]})
    table.loc[table["task_id"] == "b_2", ["scored", "success"]] = False
    summary = summarise(table)
    assert summary["tgc"] == 100.0 and summary["n_tasks"] == 5 and summary["env_failures"] == 1
    assert summary["sgc"] == 100.0 and summary["n_scenarios"] == 1   # b cannot be judged as a whole


def test_plays_of_a_scenario_count_one_by_one():
    """Three solved and three half-solved plays: SGC 50, where a scenario counted once would give 0."""
    table = pd.concat([rows({"a": [True, True, i % 2 == 0]}, play=i) for i in range(6)], ignore_index=True)
    summary = summarise(table)
    assert summary["tgc"] == pytest.approx(100 * 15 / 18) and summary["sgc"] == 50.0
    assert (summary["n_tasks"], summary["n_scenarios"], summary["n_episodes"]) == (3, 1, 18)
    scores = {m: stats.scenario_scores(table.assign(seed=0), m).iloc[0, 0] for m in ("tgc", "sgc")}
    assert scores == pytest.approx({"tgc": 100 * 15 / 18, "sgc": 50.0})
    table.loc[0, "scored"] = False   # the first play is not whole any more: 2 of 5
    assert stats.scenario_scores(table.assign(seed=0), "sgc").iloc[0, 0] == pytest.approx(40.0) == summarise(table)["sgc"]


def test_nothing_scored_is_an_error():
    with pytest.raises(RuntimeError, match="none of 3 tasks was scored"):
        summarise(rows({"a": [True, True, True]}).assign(scored=False))


def episodes(p: dict[str, float], seeds: int = 3, n: int = 60) -> pd.DataFrame:
    rng, parts = np.random.default_rng(5), []
    for method, chance in p.items():
        for seed in range(seeds):
            wins = {f"s{i:02d}": list(rng.random(3) < chance) for i in range(n)}
            parts.append(rows(wins, method=method, seed=seed, split="test_normal"))
    return pd.concat(parts)


def scores(values, per_family: int = 1) -> pd.DataFrame:
    """As `stats.scenario_scores` gives them."""
    index = [(f"f{i // per_family:03d}", f"s{i:03d}") for i in range(len(values))]
    return pd.DataFrame(values, index=pd.MultiIndex.from_tuples(index, names=["family", "scenario_id"]))


def test_bootstrap_of_constant_scores_has_no_width():
    assert stats.bootstrap(scores(np.full((7, 3), 40.0))) == pytest.approx((40.0, 40.0, 40.0))


def test_bootstrap_agrees_with_the_normal_interval_for_one_seed():
    values = np.random.default_rng(0).normal(50, 10, 400)
    mean, low, high = stats.bootstrap(scores(values))
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert high - mean == pytest.approx(half, rel=0.1) and mean - low == pytest.approx(half, rel=0.1)
    assert stats.bootstrap(scores(values)) == (mean, low, high)   # fixed seed: the same every time


def test_scenarios_of_one_family_are_not_independent():
    values = np.repeat(np.random.default_rng(0).normal(50, 10, 50), 8)
    alone, (_, low, high) = stats.bootstrap(scores(values)), stats.bootstrap(scores(values, per_family=8))
    assert high - low == pytest.approx((alone[2] - alone[1]) * 8**0.5, rel=0.1)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 50**0.5, rel=0.1)


def test_difference_of_clearly_different_methods_excludes_zero_and_of_equal_ones_does_not():
    data = episodes({"sage": 0.8, "sft": 0.5})
    by_method = {m: stats.scenario_scores(data[data["method"] == m], "tgc") for m in ("sage", "sft")}
    mean, low, high = stats.paired_difference(by_method["sage"], by_method["sft"])
    assert 20 < mean < 40 and low > 0
    assert stats.paired_difference(by_method["sft"], by_method["sft"]) == (0.0, 0.0, 0.0)


def test_difference_without_common_seeds_is_an_error():
    a, b = pd.DataFrame({0: [1.0]}, index=["x"]), pd.DataFrame({1: [1.0]}, index=["x"])
    with pytest.raises(ValueError, match="share no seed"):
        stats.paired_difference(a, b)


def test_scenario_scores_by_metric():
    data = rows({"a": [True, True, False]}, seed=0)
    assert stats.scenario_scores(data, "tgc").loc["family of a", "a"][0] == pytest.approx(200 / 3)
    assert stats.scenario_scores(data, "sgc").loc["family of a", "a"][0] == 0.0
    assert stats.scenario_scores(data, "tokens").loc["family of a", "a"][0] == 20
    data.loc[data["task_id"] == "a_3", "scored"] = False
    assert stats.scenario_scores(data, "sgc").empty and stats.scenario_scores(data, "tgc").iloc[0, 0] == 100.0
    with pytest.raises(ValueError, match="metric 'tcg'"):
        stats.scenario_scores(data, "tcg")


def test_families_are_drawn_by_what_they_gain_and_differences_pair_by_pair():
    wins = {"sft": [True, False, False], "sage": [True, True, False]}
    parts = [rows({"a": wins[m], "b": [m == "sft"] * 3, "c": [True] * 3}, method=m, seed=0, split="test_normal") for m in wins]
    data = pd.concat(parts, ignore_index=True)
    _, families = figures.family_figure(figures.family_table(data), "test_normal")
    assert families["family"].tolist() == ["family of a", "family of c", "family of b"]
    assert families["gain"].tolist() == pytest.approx([100 / 3, 0, -100])
    table = figures.difference_table(data, [("sage", "sft")])
    figure, drawn = figures.difference_figure(table, "test_normal")
    assert drawn.set_index("metric").loc["tgc", "difference"] == pytest.approx((100 / 3 - 100) / 3)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["SAGE \N{MINUS SIGN} SFT"]


def test_figures_are_byte_identical_when_drawn_again(tmp_path):
    digests = []
    for name in ("one", "two"):
        figure, data = figures.main_figure(episodes({"base": 0.1, "sage": 0.8}, n=10), "test_normal")
        paths = figures.save(figure, "main", data, directory=tmp_path / name, run_ids=["b", "a"], command="c")
        digests.append([hashlib.sha256(p.read_bytes()).hexdigest() for p in paths])
    assert digests[0] == digests[1]
    assert set(data["method"]) == {"base", "sage"} and (data["n_scenarios"] == 10).all() and (data["n_seeds"] == 3).all()


def test_a_family_counts_its_scored_tasks_over_all_seeds():
    def part(method, seed, successes, scored=True):
        return rows({"a": successes}, method=method, seed=seed, split="test_normal").assign(family="f.note", scored=scored)

    data = pd.concat([part("sft", 0, [True, False, False]), part("sft", 1, [True, True, False]),
                      part("sage", 0, [True, True, True]), part("sage", 1, [False, False, False], scored=False)])
    table = figures.family_table(data)
    assert table.to_dict("records") == [{"split": "test_normal", "family": "f.note", "n": 3, "sft": 50.0, "sage": 100.0}]


def test_difficulty_groups_scenarios_and_resamples_their_families():
    levels = {"a": 1, "b": 1, "c": 3}
    wins = {"a": [True, True, False], "b": [True, False, False], "c": [False, False, True]}
    parts = [rows(wins, method=m, seed=seed, split="test_normal") for m in ("sage", "base") for seed in (0, 1)]
    data = pd.concat(parts, ignore_index=True)
    data.loc[data["method"] == "base", "success"] = False
    data.loc[(data["method"] == "base") & (data["scenario_id"] == "c"), "scored"] = False
    table = figures.difficulty_table(data, levels)
    assert table[["difficulty", "method"]].values.tolist() == [[1, "base"], [1, "sage"], [3, "base"], [3, "sage"]]
    sage = table[table["method"] == "sage"].set_index("difficulty")
    assert sage["mean"].tolist() == pytest.approx([50, 100 / 3])
    assert sage.loc[1, ["low", "high"]].tolist() == pytest.approx([100 / 3, 200 / 3])   # the families of a and b
    assert sage.loc[3, ["low", "high"]].tolist() == pytest.approx([100 / 3, 100 / 3])   # one family: no width
    sizes = ["n_seeds", "n_scenarios", "n_families", "n_tasks"]
    assert sage[sizes].values.tolist() == [[2, 2, 2, 6], [2, 1, 1, 3]]
    gap = table[(table["method"] == "base") & (table["difficulty"] == 3)].iloc[0]
    assert np.isnan(gap["mean"]) and gap["n_seeds"] == 0   # nothing was scored: no number, never a zero
    with pytest.raises(KeyError, match="no difficulty is known of scenario 'c'"):
        figures.difficulty_table(data, {"a": 1, "b": 2})


def test_positions_and_reuse_count_what_came_before_and_what_was_called():
    wins = {"a": [True, True, False], "b": [False, True, True]}
    data = pd.concat([rows(wins, method="sage", seed=seed, split="test_normal") for seed in (0, 1)], ignore_index=True)
    positions = figures.position_table(data).set_index("position")
    assert positions["mean"].tolist() == [50.0, 100.0, 50.0] and positions["n_episodes"].tolist() == [4, 4, 4]
    assert positions["skill_use"].tolist() == [0.0, 100.0, 0.0]     # `rows` has the second task call one
    assert positions.loc[1, ["low", "high"]].tolist() == [0.0, 100.0]
    assert positions.loc[2, ["low", "high"]].tolist() == [100.0, 100.0]
    reuse = figures.reuse_table(data).set_index(["earlier", "skill"])[["n_episodes", "n_solved", "tgc"]]
    assert {key: tuple(row) for key, row in zip(reuse.index, reuse.values, strict=True)} == {
        ("solved", "called"): (2, 2, 100.0), ("not solved", "called"): (2, 2, 100.0), ("solved", "not called"): (4, 2, 50.0)}
    data.loc[data["task_id"] == "a_1", "scored"] = False             # an environment failure counts nowhere
    assert figures.position_table(data)["n_episodes"].tolist() == [2, 4, 4]
    assert figures.reuse_table(data).set_index(["earlier", "skill"]).loc[("not solved", "called"), "n_episodes"] == 4


def test_hexadecimal_ids_stay_text(tmp_path):
    data = rows({"12e4567": [True]}, run_id="1836e74557")
    data.to_csv(tmp_path / "episodes.csv", index=False)
    back = figures.read_episodes(tmp_path / "episodes.csv")
    assert back.loc[0, "run_id"] == "1836e74557" and back.loc[0, "scenario_id"] == "12e4567"
    assert back.loc[0, "task_id"] == "12e4567_1"


def test_training_chains_are_ordered_draws_of_one_scenario():
    scenarios = [Chain(f"s{i}", tuple(f"s{i}_{k}" for k in (1, 2, 3))) for i in range(5)]
    chains = chaining.training_chains(scenarios, 2, 12, seed=3)
    assert len(chains) == 12 and chains == chaining.training_chains(scenarios, 2, 12, seed=3)
    assert {c.scenario_id for c in chains[:5]} == {s.scenario_id for s in scenarios}   # an epoch sees each once
    assert all(len(set(c.task_ids)) == 2 and all(t.startswith(c.scenario_id) for t in c.task_ids) for c in chains)
    with pytest.raises(ValueError, match="chain length 4"):
        chaining.training_chains(scenarios, 4, 1, seed=0)


def test_similar_chains_join_neighbours_whatever_their_scenario():
    """Tasks on a line, 0 1 2 . 10 11 12: neighbours are known, scenarios (s0: 0 and 10) are of no account."""
    places = {"s0_1": 0.0, "s1_1": 0.01, "s2_1": 0.02, "s0_2": 1.0, "s1_2": 1.01, "s2_2": 1.02}

    def encode(texts):
        angle = np.array([places[t] for t in texts])
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)

    instructions = {task_id: task_id for task_id in places}
    chains = chaining.similar_chains(instructions, encode, 2, 60, seed=1)
    assert len(chains) == 60 and chains == chaining.similar_chains(instructions, encode, 2, 60, seed=1)
    pairs = {frozenset(c.task_ids) for c in chains}
    assert pairs == {frozenset({f"s{a}_{k}", f"s{b}_{k}"}) for k in (1, 2) for a, b in ((0, 1), (1, 2), (0, 2))}
    assert all(c.scenario_id == c.task_ids[0][:2] for c in chains)
    three = chaining.similar_chains(instructions, encode, 3, 6, seed=1)
    assert {frozenset(c.task_ids) for c in three} == {frozenset(k for k in places if k.endswith(e)) for e in ("_1", "_2")}
    assert {frozenset(c.task_ids) for c in chaining.similar_chains(instructions, encode, 2, 60, 1, neighbours=1)} < pairs
    with pytest.raises(ValueError, match="chain length 7.*from 2 up to the 6 tasks"):
        chaining.similar_chains(instructions, encode, 7, 1, seed=0)


def test_missing_world_names_the_command():
    with pytest.raises(FileNotFoundError, match="./workbench setup"):
        datasets.world_dir("nowhere")
