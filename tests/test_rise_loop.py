"""The loop: who is asked what and when, what is carried, that sampled ids are trained ids, budgets, failures, rows."""
import pytest
from fakes import FakeWorld, chain, tiny_format, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from rise_fakes import FakeTextWorld, ReadingPolicy, finder, sequence

from sagelib.config import ConfigError
from sagelib.policy import CachedPolicy
from sagelib.rise_credit import RiseCredit, Role, advantages
from sagelib.rise_document import Carry, first_lines, parse_action, parse_written, updated
from sagelib.rise_loop import play_trials
from sagelib.rise_prompts import INVALID, OMITTED, Budgets, Draft, fit, text_of
from sagelib.rise_rows import training_rows
from sagelib.rise_types import LoopSettings
from sagelib.types import StopReason

FORMAT = tiny_format()
BLUE = sequence("blue", 1, 2, 3)
WIDE = {"max_context": 4000, "reply_tokens": 200, "writer_tokens": 400, "document_tokens": 200, "trajectory_tokens": 3000}


def loop(carry="document", max_turns=4, rules=False, action="tag", **budgets):
    return LoopSettings(Carry(carry), Budgets(**WIDE | budgets), max_turns, action, rules)


def play(script=finder, chains=(BLUE,), copies=2, world=None, documents=None, **options):
    policy, world = ReadingPolicy(script), world or FakeTextWorld()
    trials = play_trials(list(chains), copies, policy, world, FORMAT, loop(**options), seed=1, documents=documents)
    assert not world.open_handles
    return trials, policy, world


# ---- reading replies

@pytest.mark.parametrize("text, action", [
    ("I go. <action> go to desk 1 </action>", "go to desk 1"), ("<action>a</action><action>b</action>", "a"),
    ("<action></action>", None), ("<action>a", None), ("", None), ("go", None), ("<action>Open\nBox</action>", "Open\nBox")])
def test_first_action(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize("text, document", [
    ("<skill>a</skill> better: <skill>\nb\nc\n</skill>", "b\nc"), ("<skill>a</skill><skill>cut off", "a"),
    ("<skill>a <skill>b</skill>", "b"), ("<skill> </skill>", None), ("<remark>a</remark>", None), ("a</skill>", None)])
def test_last_document(text, document):
    assert parse_written(text, "skill") == document


@settings(max_examples=40)
@given(st.text(max_size=80), st.integers(0, 30))
def test_a_document_never_exceeds_its_budget(text, limit):
    cut = first_lines(text, FORMAT, limit)
    assert len(FORMAT.encode(cut)) <= limit
    if len(FORMAT.encode(text)) <= limit:
        assert cut == text


def test_documents_are_replaced_and_keep_their_beginning_remarks_are_appended_and_keep_the_newest():
    assert updated(Carry.document, "old", "one\ntwo", FORMAT, 100) == "one\ntwo"
    size = len(FORMAT.encode("one\ntwo"))
    assert updated(Carry.document, "old", "one\ntwo\nthree", FORMAT, size) == "one\ntwo"
    assert updated(Carry.reflection, "- a", "b\n c", FORMAT, 100) == "- a\n- b c"
    assert updated(Carry.reflection, "- a", "b", FORMAT, len(FORMAT.encode("- b"))) == "- b"


# ---- the loop

def test_what_was_found_out_in_the_first_task_helps_in_the_others():
    trials, policy, world = play()
    assert [[e.steps for e in t.episodes] for t in trials] == [[2, 1, 1]] * 2
    assert [t.documents for t in trials] == [["", "Things are in the drawer.", "Things are in the drawer."]] * 2
    assert [len(t.curations) for t in trials] == [2, 2]                        # none after the last task
    assert all(e.success and e.stop is StopReason.completed for t in trials for e in t.episodes)
    assert len(policy.prompts) == 2 * (3 + 2)
    assert len(set(policy.seeds)) == len(policy.seeds) == 5


def test_without_carrying_nothing_is_learned_and_nothing_is_shown():
    trials, policy, _ = play(carry="none")
    assert [[e.steps for e in t.episodes] for t in trials] == [[2, 2, 2]] * 2
    assert all("Document" not in p for p in policy.prompts) and not any(t.curations for t in trials)


def test_reflections_are_collected():
    trials, _, _ = play(carry="reflection", copies=1)
    remark = "- Things are in the drawer."
    assert trials[0].documents == ["", remark, f"{remark}\n{remark}"]


def test_the_curator_sees_goal_start_attempt_outcome_and_the_old_document():
    _, policy, _ = play(copies=1)
    first, second = [p for p in policy.prompts if "Write the" in p]
    for part in ("Document:\nempty", "Task: find thing blue-1", "You see a box and a drawer.", "Outcome: SUCCESS",
                 "Action: open box\nObservation: It is empty.", "Action: open drawer\nObservation: You find it."):
        assert part in first, part
    assert "Document:\nThings are in the drawer." in second and "open box" not in second      # no trajectory of an earlier task
    trials, policy, _ = play(lambda text: "<action>wait</action>", copies=1, max_turns=2)
    assert "Outcome: FAILURE" in [p for p in policy.prompts if "Write the" in p][0]


def test_each_copy_has_a_document_of_its_own_and_starts_with_nothing():
    count = iter(range(100))
    trials, policy, _ = play(lambda text: f"<skill>{next(count)}</skill>" if "Write the" in text else finder(text), copies=3,
                             chains=[BLUE, sequence("red", 1, 2, 3)])
    assert [t.documents for t in trials] == [["", str(n), str(n + 6)] for n in range(6)]


def test_documents_can_be_given_for_an_evaluation():
    trials, _, _ = play(copies=1, chains=[sequence("blue", 1)], documents=["Look in the drawer."])
    assert trials[0].episodes[0].steps == 1 and trials[0].documents == ["Look in the drawer."]
    with pytest.raises(ValueError, match="1 documents given for 2 trials"):
        play(copies=2, documents=[""])


def test_a_reply_without_a_document_keeps_the_old_one():
    replies = iter(["<skill>good</skill>", "no tags"])
    trials, _, _ = play(lambda text: next(replies) if "Write the" in text else finder(text), copies=1)
    assert trials[0].documents == ["", "good", "good"]
    assert [c.valid for c in trials[0].curations] == [True, False]


def test_a_reply_without_an_action_costs_a_turn_and_marks_its_row():
    trials, _, world = play(lambda text: finder(text) if INVALID in text or "Write" in text else "hm", copies=1,
                            chains=[sequence("red", 1)])
    episode = trials[0].episodes[0]
    assert [t.code for t in episode.turns] == [None, "open box"] and episode.success and episode.invalid == [True]
    assert world.log == [("red-1", 0, "open box")]


# ---- ids

@pytest.mark.parametrize("turns_per_prompt", [None, 1, 2])
def test_sampled_ids_are_trained_ids(turns_per_prompt):
    trials, policy, _ = play(lambda text: "<action>wait</action>" if "Write" not in text else "<skill>s</skill>",
                             turns_per_prompt=turns_per_prompt)
    rows = training_rows(trials, RiseCredit())
    per_task = {None: 1, 1: 4, 2: 2}[turns_per_prompt]
    assert len(rows) == 2 * (3 * per_task + 2)
    trained = []
    for row in rows:
        segment, own = row.segment, []
        assert len(segment.completion_ids) == len(segment.own_mask_T) == len(segment.logprobs_T)
        for i, mine in enumerate(segment.own_mask_T):
            if mine and (i == 0 or not segment.own_mask_T[i - 1]):
                own.append([])
            if mine:
                own[-1].append(segment.completion_ids[i])
        trained += own
    assert sorted(trained) == sorted(policy.sampled)
    assert sum(len(s) for s in policy.sampled) == sum(row.score.tokens for row in rows)


def test_a_prompt_of_its_own_for_each_turn_shows_the_window():
    _, policy, _ = play(lambda text: f"<action>wait {text.count('Action:')}</action>", copies=1, chains=[sequence("red", 1)],
                        turns_per_prompt=1, window=2, max_turns=5)
    assert [p.count("Action:") for p in policy.prompts] == [0, 1, 2, 2, 2]
    assert [OMITTED in p for p in policy.prompts] == [False, False, False, True, True]


def test_a_cached_model_plays_the_same_with_one_prompt_or_many_sessions():
    """The real sampler: rows move between sessions without losing their place, and a seed decides everything."""
    model = tiny_model(gain=2.0)
    sizes = {"max_context": 500, "reply_tokens": 10, "writer_tokens": 40, "document_tokens": 20, "trajectory_tokens": 200}

    def once():
        policy = CachedPolicy(model, FORMAT.end_ids, 0)
        options = loop(max_turns=3, turns_per_prompt=2, **sizes)
        return play_trials([sequence("blue", 1, 2)], 2, policy, FakeTextWorld(), FORMAT, options, seed=3)

    first, again = once(), once()
    assert first == again
    rows = training_rows(first, RiseCredit())
    assert all(len(row.segment.ids) <= 500 for row in rows) and all(len(e.segments) == 2 for t in first for e in t.episodes)


# ---- budgets

@settings(max_examples=25)
@given(st.integers(0, 6), st.integers(0, 60), st.integers(20, 260), st.integers(1, 200))
def test_prompts_fit_and_instructions_are_whole(turns, document, room, trajectory):
    history = tuple(f"Action: {i}\nObservation: it is so" for i in range(turns))
    draft = Draft("RULES stay", "d " * document, "Task: stay", history, "ASK")
    fitted = fit(draft, FORMAT, room, trajectory, window=5)
    bare = len(FORMAT.prompt_ids(text_of(draft, 0, "")))
    if fitted is None:
        assert bare > room - 12                    # not even an empty document was short enough (a few tokens of slack)
        return
    text = FORMAT.decode(fitted.ids)
    assert len(fitted.ids) <= room and all(part in text for part in ("RULES stay", "Task: stay", "ASK"))
    assert fitted.turns_dropped == turns - text.count("Action:") >= max(0, turns - 5)
    if fitted.document_cut:
        assert text.count("Action:") == 0          # history gives way first
    kept = [i for i in range(turns) if f"Action: {i}\n" in text]
    assert kept == list(range(turns - len(kept), turns))                       # the newest turns stay


def test_a_long_task_goes_on_with_a_shorter_history():
    trials, policy, _ = play(lambda text: "<action>wait</action>" if "Write" not in text else "<skill>s</skill>", copies=1,
                             max_turns=12, max_context=420, reply_tokens=40, writer_tokens=100, document_tokens=40,
                             trajectory_tokens=150)
    rows = training_rows(trials, RiseCredit())
    assert all(len(row.segment.ids) <= 420 for row in rows)
    assert all(len(e.turns) == 12 and e.stop is StopReason.max_turns for e in trials[0].episodes)
    assert all(len(e.segments) > 1 and e.turns_dropped > 0 for e in trials[0].episodes)


def test_instructions_that_do_not_fit_end_the_task_and_nothing_else():
    trials, _, _ = play(world=FakeTextWorld(noise="very long " * 300), copies=1, max_context=300, reply_tokens=40,
                        writer_tokens=100, document_tokens=40)
    assert [e.stop for e in trials[0].episodes] == [StopReason.context_full] * 3
    assert trials[0].curations == [None, None] and training_rows(trials, RiseCredit()) == []


@pytest.mark.parametrize("wrong, says", [({"document_tokens": 320}, "do not fit into a reply of writer_tokens"),
                                         ({"max_context": 300}, "no room for a prompt"), ({"window": 0}, "window")])
def test_budgets_that_cannot_work_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        Budgets(**wrong)


def test_functions_cannot_be_carried_where_no_code_runs():
    with pytest.raises(ValueError, match="takes actions in tags"):
        loop(carry="skills")


# ---- failures of ours

def test_an_environment_failure_is_not_scored_not_curated_and_hides_earlier_documents_worth():
    world = FakeTextWorld(faults={("blue-2", 0, 0): "env_failure"}, judge_faults={("blue-3", 1)})
    trials, _, _ = play(world=world, copies=3)
    assert [[e.scored for e in t.episodes] for t in trials] == [[True, False, True], [True, True, False], [True] * 3]
    assert [[c is not None for c in t.curations] for t in trials] == [[True, False], [True, True], [True, True]]
    rows = training_rows(trials, RiseCredit())
    values = {(r.score.trial, r.score.key[1], r.score.key[2]): r.score.value for r in rows}
    assert values[0, 0, Role.solve] == 10 and values[0, 1, Role.solve] is None and values[0, 2, Role.solve] == 10
    assert values[0, 0, Role.curate] is None and values[1, 0, Role.curate] is None and values[1, 1, Role.curate] is None
    assert values[2, 0, Role.curate] == pytest.approx(9.6) and values[2, 1, Role.curate] == pytest.approx(6)


@pytest.mark.parametrize("status", ["timeout", "died"])
def test_a_task_that_breaks_is_judged_as_it_stands(status):
    trials, _, _ = play(world=FakeTextWorld(faults={("blue-1", 0, 0): status}), copies=2)
    assert trials[0].episodes[0].stop == status and trials[0].episodes[0].fraction == 0 and trials[0].curations[0] is not None


# ---- rows

def test_rows_keys_and_returns_of_two_trials():
    """Trial 0 looks into the drawer from the second task on; trial 1 never does."""
    def script(text):
        if "Write" in text:
            seen.append(1)
            return "<skill>in the drawer</skill>" if len(seen) == 1 else "nothing"
        return "<action>open drawer</action>" if "in the drawer" in text else "<action>wait</action>"
    seen = []
    trials, _, _ = play(script, copies=2, max_turns=1)
    rows = training_rows(trials, RiseCredit())
    got = [(r.score.key[1:], r.score.trial, r.score.value, r.score.invalid) for r in rows]
    S, C = Role.solve, Role.curate
    assert [(k, n, pytest.approx(v), bad) for k, n, v, bad in got] == [
        ((0, S), 0, 0, False), ((0, C), 0, 9.6, False), ((1, S), 0, 10, False), ((1, C), 0, 6, True), ((2, S), 0, 10, False),
        ((0, S), 1, 0, False), ((0, C), 1, 0, True), ((1, S), 1, 0, False), ((1, C), 1, 0, True), ((2, S), 1, 0, False)]
    assert advantages([r.score for r in rows], RiseCredit()) == pytest.approx(
        [0, 5.05, 5, 3, 5, 0, -5.05, -5, -3, -5])
    assert {r.score.key[0] for r in rows} == {"blue"}


def test_sequences_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal length, got lengths \\[1, 3\\]"):
        play(chains=[BLUE, sequence("red", 1)])


# ---- SAGE's library and the document on one world of code

@pytest.mark.parametrize("carry, returns", [("both", [20, 20]), ("skills", [20, 20]), ("document", [10, 10])])
def test_functions_are_carried_where_the_world_runs_code(carry, returns):
    """The first task defines ``add``; the second calls it, where it is carried, and else defines it again."""
    def script(text):
        if "Write the skill" in text:
            return "<skill>Write the note, then complete the task.</skill>"
        define = "" if "Skills:\ndef add" in text else "def add(text):\n    apis.notes.add(text=text)\n"
        return f"I act.\n```python\n{define}add('x')\napis.supervisor.complete_task()\n```"

    world = FakeWorld({"n_1": ["x"], "n_2": ["x"]})
    policy = ReadingPolicy(script)
    trials = play_trials([chain("n_1", "n_2")], 2, policy, world, FORMAT, loop(carry, action="code"), seed=0)
    assert not world.open_handles and all(e.success for t in trials for e in t.episodes)
    assert [e.skills_called for e in trials[0].episodes] == [(), ("add",) if carry != "document" else ()]
    assert [bool(t.curations) for t in trials] == [carry != "skills"] * 2
    rows = training_rows(trials, RiseCredit(solve="skill_integrated"))      # SAGE's bonus on the scale of the reward
    assert [r.score.value for r in rows if r.score.trial == 0 and r.score.key[2] == Role.solve] == returns
    assert all("Document:" in p for p in policy.prompts) == (carry != "skills")
