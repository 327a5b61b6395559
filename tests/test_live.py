"""The live view: what is drawn is what the run's files say, also while they are being written."""
import json
import os

import matplotlib
import pytest
from run_maker import make_run

from sagelib import live
from sagelib.runs import RunError, lock

matplotlib.use("Agg")


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "03_train-a", tokenizer=False, steps=3)


def lines(axis):
    return {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}


def test_a_finished_run_is_drawn_from_its_files(run):
    figure = live.draw(run)
    returns, percents, nothing, stops = figure.axes
    assert lines(returns) == {"task 1": [1.0] * 3, "task 2": [pytest.approx(2 / 3)] * 3}
    assert lines(percents)["tasks solved"] == [pytest.approx(100 * 4 / 6)] * 3
    assert lines(percents)["later tasks using a skill"] == [pytest.approx(100 / 3)] * 3
    assert lines(nothing) == {"groups that teach nothing": [0.0] * 3, "cut or out of context": [0.0] * 3}
    assert [c.get_label() for c in stops.collections] == ["completed", "no_code"]
    assert figure.get_suptitle() == "03_train sage seed 3 0123456789  |  done  |  step 3 of 30  |  0.50 episodes/s"


def test_a_running_one_has_the_time_left_and_a_died_one_has_not(run):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    assert live.look(run).status == "died" and live.look(run).left_s is None
    held = lock(run)
    try:
        assert live.look(run).status == "running" and "10 min left" in live.headline(live.look(run))
    finally:
        os.close(held)


def test_truncation_is_said_in_words(run):
    assert "cut" not in live.headline(live.look(run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row | ({"stop_max_tokens": 25.0, "stop_context_full": 5.0} if row.get("kind") == "rollout" else {}) for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert live.headline(live.look(run)).endswith("  |  30 % of episodes cut: raise max_tokens_per_turn or max_context")


def test_torn_lines_wait_for_their_end(run):
    whole = (run / "episodes.jsonl").read_text()
    (run / "episodes.jsonl").write_text(whole[:-30])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"time": 1, "kind": "roll')
    tail = live.Tail(run / "episodes.jsonl")
    assert len(tail.read()) == 16 and len(live.look(run, tail).metrics) == 3
    (run / "episodes.jsonl").write_text(whole)
    assert len(tail.read()) == 18 and tail.rows[:2] == [(1, 1, 2.0), (1, 2, 2.0)]
    live.draw(run, tail)


def test_a_file_that_a_resumed_run_cut_is_read_again(run):
    whole = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    tail = live.Tail(run / "episodes.jsonl")
    assert len(tail.read()) == 18
    (run / "episodes.jsonl").write_text("".join(whole[:3]))
    assert len(tail.read()) == 6
    (run / "episodes.jsonl").write_text(" " * 40 + "".join(whole))   # longer again, other bytes at the old place
    assert len(tail.read()) == 18


def test_before_the_first_step_there_is_an_empty_figure(run):
    for name in ("metrics.jsonl", "episodes.jsonl", "progress.json"):
        (run / name).unlink()
    with pytest.raises(RunError, match="has no step in its metrics.jsonl"):
        live.draw(run)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    held = lock(run)
    try:
        figure = live.draw(run)
        assert [axis.texts[0].get_text() for axis in figure.axes] == ["no step yet"] * 4
    finally:
        os.close(held)


def test_a_night_without_the_machine_does_not_count_as_speed():
    rows = [{"time": t} for t in (0, 10, 20, 40_000, 40_010, 40_020)]
    assert live.speed(rows, 5) == 0.5 and live.speed(rows[:1], 5) is None and live.speed(rows, None) is None


def test_watch_ends_with_the_run(run, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda **_: type("Handle", (), {"update": lambda self, f: shown.append(f)})())
    assert live.watch(run, every=0).status == "done" and len(shown) == 1
