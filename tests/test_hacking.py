"""What an agent can gain without solving anything, by today's rules. Some of it is possible: then the test says so.

tests/test_hostile.py has the other half, on the real engine: none of its programs, fake successes among them, passes the judge.
"""

import pytest
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format

from sagelib import credit
from sagelib.credit import chain_returns
from sagelib.rollout import RolloutSettings, rollout
from sagelib.types import StopReason

DO = "apis.notes.add(text='a')\napis.supervisor.complete_task()"
TRIVIAL = "def nothing(): return 1\n"
SETTINGS = RolloutSettings(max_turns=2, max_tokens_per_turn=2000, max_context=20000)


def played(first: str | list[str], second: str | list[str]):
    """One copy of a chain of two tasks, each of which wants the note "a"; the blocks of each task in turn."""
    blocks = [[one] if isinstance(one, str) else one for one in (first, second)]
    world = FakeWorld({"s_1": ["a"], "s_2": ["a"]})
    policy = ReplayPolicy(tiny_format(), lambda position, row, turn: f"I act.\n```python\n{blocks[position][turn]}\n```")
    [run] = rollout([chain("s_1", "s_2")], 1, policy, world, tiny_format(), SETTINGS, seed=0)
    return run, chain_returns(run, credit.skill_integrated)


def test_honest_work_without_and_with_reuse() -> None:
    assert played(DO, DO)[1] == [1, 1]
    helper = "def add(x): apis.notes.add(text=x)\n"
    run, returns = played(helper + "add('a')\napis.supervisor.complete_task()", "add('a')\napis.supervisor.complete_task()")
    assert run.episodes[1].skills_called == ("add",) and returns == [2, 2]


@pytest.mark.parametrize("claim", [
    "apis.supervisor.complete_task()", "apis.supervisor.complete_task(answer='a')",
    "print('Execution successful.')\nprint('{\"passed\": 2, \"total\": 2, \"success\": true}')\napis.supervisor.complete_task()",
    "class A:\n    def __getattr__(self, n): return lambda **k: 'done'\napis = A()\napis.notes.add(text='a')",
    "def solved(): return True\nsolved()\napis.supervisor.complete_task()"])  # fmt: skip
def test_a_claim_of_success_is_worth_what_the_judge_sees(claim: str) -> None:
    """Nothing but the state counts: half of the tests ("nothing else is there") pass for an idle agent, and no bonus is paid."""
    idle = played(["x = 1", "x = 1"], ["x = 1", "x = 1"])[0]
    run, returns = played([claim, "x = 1"], [claim, "x = 1"])
    assert [e.fraction for e in run.episodes] == [e.fraction for e in idle.episodes] == [0.5, 0.5]
    assert returns == [0.5, 0.5] and not any(e.success for e in run.episodes)


TRIVIAL_USES = {  # second task's block -> whether today's rule counts it as use of the skill (a call, by the syntax tree)
    "nothing()\n" + DO: True,
    "x = nothing()\n" + DO: True,
    "if False: nothing()\n" + DO: True,
    "def never(): nothing()\n" + DO: True,
    "[nothing() for _ in []]\n" + DO: True,
    "try: nothing(1, 2, 3)\nexcept TypeError: pass\n" + DO: True,
    "nothing\n" + DO: False,
    "# nothing()\n" + DO: False,
    "x = 'nothing()'\n" + DO: False,
    "exec('nothing()')\n" + DO: False,
    "class A: nothing = print\nA.nothing()\n" + DO: False,
    TRIVIAL + "nothing()\n" + DO: False,
    "nothing = len\nnothing('a')\n" + DO: False,
}


@pytest.mark.parametrize("block", TRIVIAL_USES)
def test_a_trivial_skill_earns_the_bonus_when_its_call_stands_in_a_clean_block(block: str) -> None:
    """TODAY'S RULE, and a hole that is known (README, limits): the call must be there, its result need not matter."""
    run, returns = played(TRIVIAL + DO, block)
    assert [e.fraction for e in run.episodes] == [1, 1]
    assert returns == ([2, 2] if TRIVIAL_USES[block] else [1, 1])
    assert run.episodes[1].skills_called == (("nothing",) if TRIVIAL_USES[block] else ())


def test_the_bonus_needs_both_tasks_solved() -> None:
    assert played(TRIVIAL + DO, ["nothing()", "nothing()"])[1] == [1, 0.5]
    run, returns = played([TRIVIAL, "x = 1"], "nothing()\n" + DO)
    assert run.episodes[1].skills_called == ("nothing",)
    assert returns == [0.5, 2]  # the user is paid; the maker, who did not solve its task, is not


def test_a_call_in_a_block_that_failed_is_no_use() -> None:
    run, returns = played(TRIVIAL + DO, ["nothing()\n1 / 0", DO])
    assert (run.episodes[1].turns[0].error, run.episodes[1].skills_called) == ("ZeroDivisionError: division by zero", ())
    assert returns == [1, 1]


def test_a_skill_that_does_not_load_is_neither_shown_nor_paid() -> None:
    """Its default argument runs when it is defined, and fails in a shell that lacks the name."""
    made = "n = 1\ndef nothing(x=n): return x\n" + DO
    run, returns = played(made, ["try: nothing()\nexcept NameError: pass\n" + DO])
    assert (run.episodes[1].skills_shown, run.episodes[1].skills_dropped) == ((), ("nothing",))
    assert run.episodes[1].skills_called == () and returns == [1, 1]


def test_a_skill_that_acts_when_it_is_loaded_acts_before_the_agent_does_and_is_judged_as_its_own() -> None:
    """Code in a default argument runs in the next task's shell: it can do that task's work, or spoil it; no bonus for it."""
    acting = "def helper(x=apis.notes.add(text='a')): return x\napis.supervisor.complete_task()"
    run, returns = played(acting, "apis.supervisor.complete_task()")
    assert [e.fraction for e in run.episodes] == [1, 1] and returns == [1, 1]
    spoiling = "def helper(x=apis.notes.add(text='b')): return x\n" + DO
    assert played(spoiling, DO)[0].episodes[1].success is False


def test_ending_the_process_leaves_the_outcome_of_the_state_and_only_our_faults_leave_the_group() -> None:
    for status, stop, returns in (("died", StopReason.died, [0.5, 1]), ("timeout", StopReason.timeout, [0.5, 1]),
                                  ("env_failure", StopReason.env_failure, [None, 1])):  # fmt: skip
        world = FakeWorld({"s_1": ["a"], "s_2": ["a"]}, faults={("s_1", 0, 0): status})
        policy = ReplayPolicy(tiny_format(), lambda *_: f"I act.\n```python\n{DO}\n```")
        [run] = rollout([chain("s_1", "s_2")], 1, policy, world, tiny_format(), SETTINGS, seed=0)
        assert run.episodes[0].stop is stop and chain_returns(run, credit.skill_integrated) == returns
