"""Credit of SkillRise in closed form: the gamma table, groups, penalties, one vote per trial, and the switches."""
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagelib.config import ConfigError
from sagelib.rise_credit import (
    GRPO_AS_RELEASED,
    RiseCredit,
    Role,
    Score,
    advantages,
    curate_returns,
    loss_weights,
    row_score,
    solve_returns,
    task_reward,
)

quick = settings(max_examples=40)
SOLVE, CURATE = ("s", 0, Role.solve), ("s", 0, Role.curate)


def scores(values, key=SOLVE, invalid=()):
    """One row per trial."""
    return [Score(key, n, value, n in invalid) for n, value in enumerate(values)]


# ---- returns

def test_three_tasks():
    r = [10, 7, 5]
    assert solve_returns(r) == r
    assert curate_returns(r, 0.6) == pytest.approx([0.6 * 7 + 0.36 * 5, 0.6 * 5])


@pytest.mark.parametrize("later, expected", [((0, 0), 0), ((0, 10), 3.6), ((10, 0), 6), ((10, 10), 9.6)])
def test_the_four_values_of_the_first_curation(later, expected):
    assert curate_returns([0, *later], 0.6)[0] == pytest.approx(expected)
    assert curate_returns([10, *later], 0.6)[0] == pytest.approx(expected)      # its own task does not count


@pytest.mark.parametrize("r, expected", [([], []), ([10], []), ([10, 1], [0.6])])
def test_there_is_no_curation_after_the_last_task(r, expected):
    assert curate_returns(r, 0.6) == pytest.approx(expected)


def test_an_unknown_outcome_hides_the_worth_of_every_document_before_it():
    assert curate_returns([10, None, 10, 10], 0.5) == [None, 7.5, 5.0]
    assert curate_returns([None, 10, 10], 0.5) == [7.5, 5.0]
    assert curate_returns([10, 10, None], 0.5) == [None, None]


@quick
@given(st.lists(st.floats(0, 10), min_size=2, max_size=7), st.floats(0, 1))
def test_curate_is_the_papers_sum(r, gamma):
    K = len(r)
    expected = [sum(gamma ** (j - i) * r[j] for j in range(i + 1, K)) for i in range(K - 1)]
    assert curate_returns(r, gamma) == pytest.approx(expected, abs=1e-9)


@quick
@given(st.lists(st.floats(0, 10), min_size=2, max_size=6), st.floats(0, 10))
def test_gamma_zero_teaches_no_curation_and_the_first_task_never_does(r, other):
    assert curate_returns(r, 0.0) == [0.0] * (len(r) - 1)
    assert curate_returns([other, *r[1:]], 0.6) == curate_returns(r, 0.6)


@pytest.mark.parametrize("success, fraction, switches, expected", [
    (True, 1.0, {}, 10), (False, 0.75, {}, 0), (False, None, {}, None),
    (False, 0.75, {"reward": "fraction"}, 7.5), (True, 1.0, {"success_reward": 1.0}, 1),
])
def test_reward_of_a_task(success, fraction, switches, expected):
    assert task_reward(success, fraction, RiseCredit(**switches)) == expected


# ---- scores and groups

def test_the_penalty_belongs_to_the_invalid_row_and_its_role():
    credit = RiseCredit(solve_penalty=0.5, curate_penalty=0.25)
    assert row_score(Score(SOLVE, 0, 10, True), credit) == 9.5
    assert row_score(Score(CURATE, 0, 10, True), credit) == 9.75
    assert row_score(Score(CURATE, 0, 10), credit) == 10
    assert row_score(Score(SOLVE, 0, None, True), credit) is None


def test_mean_only():
    assert advantages(scores([10, 0, 0, 10]), RiseCredit()) == [5, -5, -5, 5]
    assert advantages(scores([10, 0, 0, 0]), RiseCredit()) == [7.5, -2.5, -2.5, -2.5]


def test_penalties_enter_the_mean():
    assert advantages(scores([10, 10, 0, 0], invalid={1, 3}), RiseCredit()) == [5.25, 4.75, -4.75, -5.25]
    assert advantages(scores([10, 10, 0, 0], invalid={1, 3}), RiseCredit(solve_penalty=0.0)) == [5, 5, -5, -5]


def test_weights_by_role():
    credit = RiseCredit(solve_weight=2.0, curate_weight=0.5)
    rows = scores([10, 0]) + scores([9.6, 3.6], CURATE)
    assert advantages(rows, credit) == pytest.approx([10, -10, 1.5, -1.5])
    assert advantages(rows, RiseCredit(curate_weight=0.0)) == [5, -5, 0, 0]


def test_sequences_positions_and_roles_are_never_compared():
    keys = [("s", 0, Role.solve), ("s", 0, Role.curate), ("s", 1, Role.solve), ("t", 0, Role.solve)]
    rows = [row for i, key in enumerate(keys) for row in scores([i, i + 2], key)]
    assert advantages(rows, RiseCredit()) == [-1, 1] * 4


def test_each_trial_has_one_vote_however_many_rows_it_has():
    rows = [Score(SOLVE, 0, 10), Score(SOLVE, 0, 10), Score(SOLVE, 0, 10), Score(SOLVE, 1, 0)]
    assert advantages(rows, RiseCredit()) == [5, 5, 5, -5]
    assert advantages(rows, RiseCredit(members="rows")) == [2.5, 2.5, 2.5, -7.5]


def test_a_penalised_row_among_several_of_a_trial():
    rows = [Score(SOLVE, 0, 10, True), Score(SOLVE, 0, 10), Score(SOLVE, 1, 0)]
    assert advantages(rows, RiseCredit(solve_penalty=1.0)) == [9 - 4.75, 10 - 4.75, -4.75]     # trial 0 votes 9.5


def test_std_switch():
    spread = math.sqrt(100 / 3) + 1e-6                     # of 10, 10, 0, 0, with n - 1
    assert advantages(scores([10, 10, 0, 0]), RiseCredit(scale="mean_std")) == pytest.approx([5 / spread] * 2 + [-5 / spread] * 2)
    long = [Score(SOLVE, 0, 10)] * 3 + [Score(SOLVE, 1, 0)]
    assert advantages(long, GRPO_AS_RELEASED) == pytest.approx([0.5] * 3 + [-1.5])


@pytest.mark.parametrize("rows", [[], scores([10]), scores([None, 10, None]), scores([None, None]),
                                  [Score(SOLVE, 0, 10, True), Score(SOLVE, 0, 10)]])
@pytest.mark.parametrize("switches", [{}, {"scale": "mean_std"}, {"members": "rows"}])
def test_a_single_trial_teaches_nothing(rows, switches):
    assert advantages(rows, RiseCredit(**switches)) == [0.0] * len(rows)


def test_environment_failures_leave_the_mean():
    assert advantages(scores([10, None, 0, None]), RiseCredit()) == [5, 0, -5, 0]


VALUES = st.none() | st.sampled_from([0.0, 0.1, 1 / 3, 3.6, 6.0, 9.6, 10.0])
ROWS = st.lists(st.builds(Score, st.tuples(st.sampled_from("st"), st.integers(0, 1), st.sampled_from(list(Role))),
                          st.integers(0, 3), VALUES, st.booleans(), st.integers(0, 9)), max_size=24)


@quick
@given(ROWS, st.randoms())
def test_the_order_of_the_rows_changes_nothing(rows, random):
    shuffled = list(enumerate(rows))
    random.shuffle(shuffled)
    got = advantages([row for _, row in shuffled], RiseCredit())
    expected = advantages(rows, RiseCredit())
    assert got == pytest.approx([expected[i] for i, _ in shuffled], abs=1e-12)


@quick
@given(ROWS)
def test_votes_of_a_group_sum_to_zero(rows):
    got = advantages(rows, RiseCredit())
    for key in {row.key for row in rows}:
        by_trial = {}
        for row, a in zip(rows, got, strict=True):
            if row.key == key and row.value is not None:
                by_trial.setdefault(row.trial, []).append(a)
        assert sum(sum(v) / len(v) for v in by_trial.values()) == pytest.approx(0, abs=1e-9)


@quick
@given(ROWS, st.floats(-50, 50))
def test_a_constant_added_to_all_returns_changes_nothing(rows, constant):
    moved = [Score(r.key, r.trial, None if r.value is None else r.value + constant, r.invalid) for r in rows]
    assert advantages(moved, RiseCredit()) == pytest.approx(advantages(rows, RiseCredit()), abs=1e-9)


@quick
@given(st.sampled_from([0.1, 1 / 3, 5 / 7, 10.0]), st.integers(2, 16), st.sampled_from(["mean", "mean_std"]))
def test_equal_returns_give_exactly_zero(value, trials, scale):
    assert advantages(scores([value] * trials), RiseCredit(scale=scale)) == [0.0] * trials


# ---- the loss

def test_loss_weights():
    rows = [Score(SOLVE, 0, 10, tokens=6), Score(SOLVE, 1, 0, tokens=2), Score(CURATE, 0, None, tokens=2)]
    assert loss_weights(rows, RiseCredit()) == [0.6, 0.2, 0.2]
    assert loss_weights(rows, RiseCredit(aggregate="row_mean")) == [1 / 3] * 3
    assert loss_weights([Score(SOLVE, 0, 1, tokens=0)], RiseCredit()) == [0.0]


@pytest.mark.parametrize("wrong, says", [({"gamma": 1.5}, "gamma"), ({"gama": 0.6}, "did you mean 'gamma'"),
                                         ({"scale": "std"}, "scale"), ({"curate_penalty": -1.0}, "curate_penalty")])
def test_wrong_switches_are_refused_by_name(wrong, says):
    with pytest.raises(ConfigError, match=says):
        RiseCredit(**wrong)
