"""The rollout loop: order of the limit checks, token bookkeeping, private libraries, what is scored and what is not."""
import pytest
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format

from sagelib.credit import CREDIT, chain_returns
from sagelib.prompts import reply
from sagelib.rollout import RolloutSettings, rollout
from sagelib.skills import SkillLibrary
from sagelib.types import StopReason

FORMAT = tiny_format()
SETTINGS = RolloutSettings(max_turns=4, max_tokens_per_turn=400, max_context=4000)
ONE = (chain("s_1"),)
WANTED = {"s_1": ["a"], "s_2": ["b"], "s_3": ["c"]}
DONE = reply("done", "apis.supervisor.complete_task()")
ADD = "def add(text):\n    apis.notes.add(text=text)\n"


def play(script, world=None, chains=ONE, copies=1, settings=SETTINGS, libraries=None):
    """``script``: {(position, row): [replies]}, or a function of (position, row, turn)."""
    world = world or FakeWorld(WANTED)
    say = script if callable(script) else lambda position, row, turn: script[position, row][turn]
    policy = ReplayPolicy(FORMAT, say)
    runs = rollout(list(chains), copies, policy, world, FORMAT, settings, seed=11, libraries=libraries)
    assert world.open_handles == []                       # whatever happened, every episode was closed
    return runs, policy, world


def add(note):
    return reply("add", f"apis.notes.add(text={note!r})")


# ---- order of the limit checks

def test_context_is_checked_before_sampling():
    settings = RolloutSettings(max_turns=4, max_tokens_per_turn=400, max_context=400)
    runs, policy, world = play({(0, 0): [DONE]}, settings=settings)
    episode = runs[0].episodes[0]
    assert episode.stop is StopReason.context_full and episode.turns == [] and world.log == []
    assert episode.segment.completion_ids == [] and episode.fraction == 0.5     # judged as it stands


def test_the_context_limit_is_exact():
    prompt = len(play({(0, 0): [DONE]})[0][0].episodes[0].segment.prompt_ids)
    for room, stop in ((0, StopReason.completed), (-1, StopReason.context_full)):
        settings = RolloutSettings(max_turns=4, max_tokens_per_turn=200, max_context=prompt + 200 + room)
        assert play({(0, 0): [DONE]}, settings=settings)[0][0].episodes[0].stop is stop


def test_a_reply_that_is_cut_is_not_executed_even_with_a_whole_block():
    text = add("a") + " and so on" * 100
    runs, _, world = play({(0, 0): [text]})
    episode = runs[0].episodes[0]
    assert episode.stop is StopReason.max_tokens and world.log == [] and episode.turns[0].code is None
    assert episode.turns[0].finish == "length" and episode.segment.generated == 400
    assert chain_returns(runs[0], CREDIT["outcome"]) == [0.5]                   # cut is not "no code": no penalty


def test_no_code_ends_the_task_with_the_penalty():
    runs, _, world = play({(0, 0): [add("a"), "I give up."]})
    episode = runs[0].episodes[0]
    assert episode.stop is StopReason.no_code and episode.fraction == 1.0 and episode.steps == 1
    for name in CREDIT:
        assert chain_returns(runs[0], CREDIT[name]) == [-1.0]                   # in place of r, without a bonus


@pytest.mark.parametrize("status", ["timeout", "died", "env_failure"])
def test_a_broken_block_ends_the_task_even_on_the_last_turn(status):
    settings = RolloutSettings(max_turns=2, max_tokens_per_turn=400, max_context=4000)
    world = FakeWorld(WANTED, faults={("s_1", 0, 1): status})
    runs, _, _ = play({(0, 0): [add("a"), DONE, DONE]}, world, settings=settings)
    episode = runs[0].episodes[0]
    assert episode.stop == status and len(episode.turns) == 2
    assert episode.scored == (status != "env_failure")
    assert episode.fraction == (1.0 if episode.scored else None)                # judged from the state as it stands
    assert chain_returns(runs[0], CREDIT["outcome"]) == [1.0 if episode.scored else None]
    assert world.judged == ([("s_1", 0)] if episode.scored else [])


def test_completed_comes_before_max_turns():
    settings = RolloutSettings(max_turns=1, max_tokens_per_turn=400, max_context=4000)
    assert play({(0, 0): [DONE]}, settings=settings)[0][0].episodes[0].stop is StopReason.completed
    episode = play({(0, 0): [add("a")]}, settings=settings)[0][0].episodes[0]
    assert episode.stop is StopReason.max_turns and episode.success and len(episode.turns) == 1


def test_an_error_is_shown_and_the_episode_goes_on():
    runs, _, _ = play({(0, 0): [reply("try", "boom"), add("a"), DONE]})
    episode = runs[0].episodes[0]
    assert [t.error for t in episode.turns] == ["NameError: name 'boom' is not defined", None, None]
    assert [t.observation for t in episode.turns][:2] == ["NameError: name 'boom' is not defined", "OK"]
    assert episode.success and episode.stop is StopReason.completed and episode.steps == 3


# ---- tokens

def three_turns():
    return {(0, 0): [reply("one", "x = 1\nprint(x)"), reply("two", "boom"), DONE]}


def test_trained_ids_are_the_sampled_ids_across_turns():
    runs, policy, _ = play(three_turns())
    segment, session = runs[0].episodes[0].segment, policy.sessions[0]
    assert segment.ids == session.sequences[0] and segment.prompt_ids == session.prompts[0]
    own = [i for i, mine in zip(segment.completion_ids, segment.own_mask_T, strict=True) if mine]
    assert own == [i for reply_ids in session.sampled[0] for i in reply_ids]
    text = FORMAT.decode(session.sampled[0][0])
    assert FORMAT.encode(text) + [FORMAT.end_id] != session.sampled[0][0]       # re-tokenising would have been seen


def test_masks_and_logprobs_are_as_long_as_the_ids_and_observations_are_masked():
    runs, policy, _ = play(three_turns())
    segment, sampled = runs[0].episodes[0].segment, policy.sessions[0].sampled[0]
    tails = [FORMAT.observation_ids("1", closed=True),
             FORMAT.observation_ids("NameError: name 'boom' is not defined", closed=True)]
    expected, logprobs = [], []
    for reply_ids, tail in zip(sampled, [*tails, []], strict=True):
        expected += [1] * len(reply_ids) + [0] * len(tail)
        logprobs += [-0.01 * (i + 1) for i in range(len(reply_ids))] + [0.0] * len(tail)
    assert segment.own_mask_T == expected and segment.logprobs_T == logprobs
    assert len(segment.completion_ids) == len(expected)
    ends = [i for i, token in enumerate(segment.completion_ids) if token == FORMAT.end_id and expected[i]]
    assert len(ends) == 3 and segment.generated == sum(map(len, sampled))       # each reply's end token is trained


def test_no_observation_after_the_last_reply():
    segment = play({(0, 0): [add("a")] * 4})[0][0].episodes[0].segment
    assert segment.own_mask_T[-1] == 1 and segment.completion_ids[-1] == FORMAT.end_id


def test_long_observations_are_cut():
    settings = RolloutSettings(max_turns=4, max_tokens_per_turn=400, max_context=4000, observation_chars=10)
    episode = play({(0, 0): [reply("p", "print('x' * 50)"), DONE]}, settings=settings)[0][0].episodes[0]
    assert episode.turns[0].observation == "x" * 9 + "…"


# ---- skills

def test_libraries_are_private_to_a_copy():
    def script(position, row, turn):
        if turn:
            return DONE
        if position == 0:
            return reply("make", ADD + "add('a')") if row == 0 else add("a")
        return reply("use", "add('b')")

    runs, policy, world = play(script, chains=(chain("s_1", "s_2"),), copies=2)
    maker, other = runs
    assert maker.libraries[0] == {"add": ADD.strip()} and other.libraries == [{}, {}]
    assert maker.episodes[1].skills_shown == ("add",) and other.episodes[1].skills_shown == ()
    assert maker.episodes[1].skills_called == ("add",) and maker.episodes[1].success
    assert other.episodes[1].skills_called == () and not other.episodes[1].success   # not callable there either
    prompts = [FORMAT.decode(ids) for ids in policy.sessions[1].prompts]
    assert "def add" in prompts[0] and "def add" not in prompts[1]
    assert ("s_2", 1, ADD.strip()) not in world.log
    assert chain_returns(maker, CREDIT["skill_integrated"]) == [2.0, 2.0]
    assert chain_returns(other, CREDIT["skill_integrated"]) == [1.0, 0.5]


def test_a_starting_library_is_copied_and_earns_no_bonus():
    start = SkillLibrary({"add": ADD.strip()})
    script = {(0, 0): [reply("use", "add('a')\ndef extra():\n    return 1"), DONE],
              (1, 0): [reply("use", "add('b')"), DONE]}
    runs, _, _ = play(script, chains=(chain("s_1", "s_2"),), libraries=[start])
    assert len(start) == 1 and set(runs[0].libraries[0]) == {"add", "extra"}
    assert [e.skills_called for e in runs[0].episodes] == [("add",), ("add",)]
    assert chain_returns(runs[0], CREDIT["skill_integrated"]) == [1.0, 1.0]     # nobody in the chain generated it


def test_skills_are_saved_only_from_clean_blocks():
    script = {(0, 0): [reply("fails after the def", ADD + "boom"), reply("mends", "def ok():\n    return 1"), DONE]}
    runs, _, _ = play(script)
    assert set(runs[0].libraries[0]) == {"ok"} and runs[0].episodes[0].skills_made == ("ok",)


def test_an_update_overwrites_and_the_last_maker_is_paid():
    script = {(0, 0): [reply("make", ADD + "add('a')"), DONE],
              (1, 0): [reply("update", ADD.replace("(text):", "(text, new=2):") + "add('b')"), DONE],
              (2, 0): [reply("use", "add('c')"), DONE]}
    runs, _, _ = play(script, chains=(chain("s_1", "s_2", "s_3"),))
    assert [e.skills_made for e in runs[0].episodes] == [("add",), ("add",), ()]
    assert [e.skills_called for e in runs[0].episodes] == [(), (), ("add",)]   # redefined and called is not "used"
    assert "new=2" in runs[0].libraries[2]["add"]
    assert chain_returns(runs[0], CREDIT["skill_integrated"]) == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("first, used", [
    ("x = 1", ("add",)),
    (ADD, ()),                          # redefined in an earlier block of this task
    (ADD + "boom", ()),                 # ... in a block that failed: the shell holds the new one all the same
    ("add = apis.notes.add", ()),
    ("print('add')", ("add",)),
])
def test_a_skill_redefined_earlier_in_the_task_is_not_used(first, used):
    script = {(0, 0): [reply("one", first), reply("two", "add(text='a')"), DONE]}
    runs, _, _ = play(script, libraries=[SkillLibrary({"add": ADD.strip()})])
    assert runs[0].episodes[0].skills_called == used


def test_the_paper_s_detector_takes_a_mention_for_use():
    script = {(0, 0): [reply("one", "# add\nx = 1"), DONE]}
    for detector, used in (("strict", ()), ("name_match", ("add",))):
        loose = RolloutSettings(max_turns=4, max_tokens_per_turn=400, max_context=4000, detector=detector)
        runs, _, _ = play(script, settings=loose, libraries=[SkillLibrary({"add": ADD.strip()})])
        assert runs[0].episodes[0].skills_called == used


def test_a_call_in_a_block_that_failed_is_not_use():
    script = {(0, 0): [reply("one", "add('a')\nboom"), DONE]}
    runs, _, _ = play(script, libraries=[SkillLibrary({"add": ADD.strip()})])
    assert runs[0].episodes[0].skills_called == ()


def test_a_skill_that_fails_to_load_drops_alone():
    library = SkillLibrary({"bad": "import no_such_module\ndef bad():\n    pass", "add": ADD.strip(),
                            "twice": "def twice(text):\n    add(text)\n    add(text)"})
    runs, policy, _ = play({(0, 0): [reply("use", "twice('a')"), DONE]}, libraries=[library])
    episode = runs[0].episodes[0]
    assert episode.skills_shown == ("add", "twice") and episode.skills_dropped == ("bad",)
    assert episode.skills_called == ("twice",) and episode.success              # B calls A
    assert "def bad" not in FORMAT.decode(policy.sessions[0].prompts[0])
    assert set(runs[0].libraries[0]) == {"bad", "add", "twice"}                 # dropped from the task, not forgotten


@pytest.mark.parametrize("status, text, stop, r", [
    ("env_failure", add("a"), StopReason.env_failure, None),
    ("env_failure", "I give up.", StopReason.env_failure, None),    # our fault: not even the penalty
    ("timeout", add("a"), StopReason.died, 0.5),                    # a skill that hangs on loading takes the shell down
])
def test_a_world_that_breaks_while_skills_load(status, text, stop, r):
    world = FakeWorld(WANTED, faults={("s_1", 0, 0): status})
    runs, _, _ = play({(0, 0): [text]}, world, libraries=[SkillLibrary({"add": ADD.strip()})])
    assert runs[0].episodes[0].stop is stop and runs[0].episodes[0].skills_shown == ()
    assert chain_returns(runs[0], CREDIT["outcome"]) == [r]


@pytest.mark.parametrize("skills_on", [True, False])
def test_without_skills_none_is_shown_kept_or_loaded(skills_on):
    settings = RolloutSettings(skills=skills_on, max_turns=4, max_tokens_per_turn=400, max_context=4000)
    script = {(0, 0): [reply("make", ADD + "add('a')"), DONE], (1, 0): [reply("use", "add('b')"), DONE]}
    runs, policy, world = play(script, chains=(chain("s_1", "s_2"),), settings=settings)
    run = runs[0]
    shown = ["Skills:" in FORMAT.decode(s.prompts[0]) for s in policy.sessions]
    assert shown == [skills_on, skills_on]
    assert run.episodes[1].skills_called == (("add",) if skills_on else ())
    assert run.episodes[1].success == skills_on and bool(run.libraries[1]) == skills_on
    assert (("s_2", 0, ADD.strip()) in world.log) == skills_on


# ---- failures of ours

def test_an_environment_failure_leaves_the_others_alone():
    world = FakeWorld(WANTED, faults={("s_1", 1, 0): "env_failure"}, judge_faults={("s_1", 2)})
    runs, _, _ = play(lambda position, row, turn: add("a") if turn == 0 else DONE, world, copies=3)
    stops = [r.episodes[0].stop for r in runs]
    assert stops == [StopReason.completed, StopReason.env_failure, StopReason.env_failure]
    assert [r.episodes[0].fraction for r in runs] == [1.0, None, None]
    assert [chain_returns(r, CREDIT["chain"]) for r in runs] == [[2.0], [None], [None]]


def test_worlds_are_closed_when_the_policy_raises():
    world = FakeWorld(WANTED)

    def script(position, row, turn):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        play(script, world)
    assert world.open_handles == []


# ---- order

def test_copies_of_a_chain_are_adjacent_and_tasks_in_order():
    world = FakeWorld({**WANTED, "t_1": ["a"], "t_2": ["b"]})
    chains = (chain("s_1", "s_2"), chain("t_1", "t_2"))
    runs, policy, _ = play(lambda position, row, turn: DONE, world, chains, copies=2)
    assert [(r.chain.scenario_id, r.copy) for r in runs] == [("s", 0), ("s", 1), ("t", 0), ("t", 1)]
    assert [[e.task_id for e in r.episodes] for r in runs] == [["s_1", "s_2"]] * 2 + [["t_1", "t_2"]] * 2
    assert [[e.position for e in r.episodes] for r in runs] == [[0, 1]] * 4
    assert [e.segment.position for e in runs[3].episodes] == [0, 1]
    assert len(set(policy.seeds)) == 2


def test_chains_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        play({}, chains=(chain("s_1"), chain("s_1", "s_2")))
