"""A stream of tasks with one growing library: order, what is stored, what is shown, what the rows say."""

from fakes import FakeWorld, ReplayPolicy, tiny_format

from sagelib.prompts import reply
from sagelib.retrieval import Retriever
from sagelib.rollout import RolloutSettings
from sagelib.stream import STREAM_COLUMNS, play_stream, stream_order
from sagelib.types import Chain

FORMAT = tiny_format()
SETTINGS = RolloutSettings(max_turns=1, max_tokens_per_turn=400, max_context=4000)
CHAINS = [Chain("s", ("s_1", "s_2", "s_3")), Chain("t", ("t_1", "t_2", "t_3"))]
STREAM = [Chain(t[0], (t,)) for t in ("s_1", "t_1", "s_2", "t_2")]
INSTRUCTIONS = {f"{s}_{k}": f"Write the notes of {s} number {k}." for s in "st" for k in (1, 2, 3)}
WANTED = {task_id: [task_id] for task_id in INSTRUCTIONS}


def define(name, note):
    return reply("define", f"def {name}(text):\n    apis.notes.add(text=text)\n{name}({note!r})")


def play(replies, method="same_scenario", together=1, world=None, settings=SETTINGS):
    """``replies``: of the tasks in stream order."""
    policy = ReplayPolicy(FORMAT, lambda session, row, turn: replies[session * together + row])
    rows, runs = play_stream(policy, world or FakeWorld(WANTED), FORMAT, STREAM, INSTRUCTIONS, {"s": "fs", "t": "ft"}, settings,
                             Retriever(method), seed=3, together=together)
    return rows, runs, policy


REPLIES = [define("add_s", "s_1"), define("add_t", "t_1"), reply("use", "add_s('s_2')"), reply("use", "add_t('t_2')")]


def test_a_stream_is_a_shuffle_that_keeps_the_order_within_scenarios():
    orders = [stream_order(CHAINS, seed) for seed in range(20)]
    for order in orders:
        tasks = [c.task_ids[0] for c in order]
        assert sorted(tasks) == sorted(INSTRUCTIONS) and [t for t in tasks if t[0] == "s"] == ["s_1", "s_2", "s_3"]
        assert all(c.scenario_id == c.task_ids[0][0] for c in order)
    assert orders[0] == stream_order(CHAINS, 0) and len({tuple(o) for o in orders}) > 5


def test_skills_of_other_scenarios_stay_out_of_same_scenario_and_come_in_with_all():
    rows, runs, _ = play(REPLIES)
    assert list(rows.columns) == STREAM_COLUMNS
    assert rows["success"].tolist() == [True] * 4 and rows["position"].tolist() == [0, 0, 1, 1]
    assert rows["skills_shown"].tolist() == [0, 0, 1, 1] and rows["skills_called"].tolist() == [0, 0, 1, 1]
    assert rows["stored"].tolist() == [0, 1, 2, 2] and rows["shown_of_scenario"].tolist() == [0, 0, 1, 1]
    assert runs[2].episodes[0].skills_shown == ("add_s",)
    rows, _, _ = play(REPLIES, "all")
    assert rows["skills_shown"].tolist() == [0, 1, 2, 2] and rows["shown_of_scenario"].tolist() == [0, 0, 1, 1]


def test_without_retrieval_nothing_is_callable():
    rows, runs, _ = play(REPLIES, "none")
    assert rows["success"].tolist() == [True, True, False, False] and rows["skills_shown"].sum() == 0
    assert runs[2].episodes[0].turns[0].error == "NameError: name 'add_s' is not defined"


def test_tasks_played_together_do_not_see_each_other():
    rows, _, policy = play(REPLIES, "all", together=2)
    assert rows["skills_shown"].tolist() == [0, 0, 2, 2] and rows["stored"].tolist() == [0, 0, 2, 2]
    assert rows["stream_index"].tolist() == [0, 1, 2, 3] and len(policy.sessions) == 2


def test_an_environment_failure_stores_nothing():
    world = FakeWorld(WANTED, judge_faults={("s_1", 0)})
    rows, _, _ = play(REPLIES, world=world)
    assert rows["scored"].tolist() == [False, True, True, True] and rows["skills_shown"].tolist() == [0, 0, 0, 1]
    assert rows["position"].tolist() == [0, 0, 1, 1] and rows["stored"].tolist() == [0, 0, 1, 1]


def test_the_plain_agent_has_no_library():
    rows, runs, _ = play(REPLIES, settings=RolloutSettings(skills=False, max_turns=1, max_tokens_per_turn=400, max_context=4000))
    assert rows["skills_shown"].sum() == 0 and not rows["success"].tolist()[2]
