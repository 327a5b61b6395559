"""Returns and advantages: the golden vectors of the paper, exactly, and what the formulas say at the edges."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagelib import credit

R1, R2, USED = [1, 1, 1, 0.5], [1, 1, 0, 1], [True, False, True, True]


def group_returns(name, r1=R1, r2=R2, used=USED):
    """Returns (R1_G, R2_G) of G chains of two tasks, played one after the other."""
    rows = [credit.CREDIT[name]([a, b], [False, u], [set(), {0} if u else set()])
            for a, b, u in zip(r1, r2, used, strict=True)]
    return [row[0] for row in rows], [row[1] for row in rows]


@pytest.mark.parametrize("name, returns1, returns2, advantages1, advantages2", [
    ("skill_integrated", [2, 1, 1, 0.5], [2, 1, 0, 2], [0.875, -0.125, -0.125, -0.625], [0.75, -0.25, -1.25, 0.75]),
    ("outcome", [1, 1, 1, 0.5], [1, 1, 0, 1], [0.125, 0.125, 0.125, -0.375], [0.25, 0.25, -0.75, 0.25]),
    ("chain", [2, 2, 1, 0.5], [2, 2, 0, 1], [0.625, 0.625, -0.375, -0.875], [0.75, 0.75, -1.25, -0.25]),
])
def test_golden_vectors(name, returns1, returns2, advantages1, advantages2):
    first, second = group_returns(name)
    assert (first, second) == (returns1, returns2)
    assert credit.group_advantages(first) == advantages1
    assert credit.group_advantages(second) == advantages2


@pytest.mark.parametrize("r, used, expected", [
    ([1, 0.4], True, [1, 0.4]),         # the user failed: nobody is paid
    ([1, 1], False, [1, 1]),            # no reuse
    ([1, 1], True, [2, 2]),             # the worked example
    ([0.5, 1], True, [0.5, 2]),         # the user is paid even when the maker failed
    ([1, -1], True, [1, -1]),           # a reply without code
    ([-1, 1], True, [-1, 2]),
    ([None, 1], True, [None, 2]),       # our fault in task 1 does not touch task 2
    ([1, None], True, [1, None]),
    ([None, None], False, [None, None]),
])
def test_skill_integrated_at_the_edges(r, used, expected):
    assert credit.skill_integrated(r, [False, used], [set(), {0} if used else set()]) == expected


@pytest.mark.parametrize("name, r, expected", [
    ("outcome", [0.25], [0.25]), ("outcome", [None], [None]), ("outcome", [-1.0], [-1.0]),
    ("skill_integrated", [1], [1]), ("skill_integrated", [None], [None]), ("skill_integrated", [-1.0], [-1.0]),
    ("chain", [1], [2]), ("chain", [0.5], [0.5]), ("chain", [None], [None]),
])
def test_chains_of_one(name, r, expected):
    assert credit.CREDIT[name](r, [False], [set()]) == expected


@pytest.mark.parametrize("r, makers, expected", [
    ([1, 1, 1], [set(), {0}, {0}], [2, 2, 2]),          # two users, one generation bonus
    ([1, 1, 1], [set(), {0}, {1}], [2, 3, 2]),          # the middle one uses and makes
    ([1, 1, 1], [set(), set(), {0, 1}], [2, 2, 2]),
    ([1, 0.5, 1], [set(), {0}, {1}], [1, 0.5, 2]),      # the middle one failed: its maker is not paid for it
    ([1, None, 1], [set(), {0}, {0}], [2, None, 2]),
    ([1, 1, 1], [set(), set(), set()], [1, 1, 1]),
])
def test_chains_of_three(r, makers, expected):
    assert credit.skill_integrated(r, [bool(m) for m in makers], makers) == expected


def test_chain_bonus_needs_every_task():
    assert credit.chain_based([1, 1, 1], [False] * 3, [set()] * 3) == [2, 2, 2]
    assert credit.chain_based([1, 1, 0.9], [True] * 3, [set()] * 3) == [1, 1, 0.9]
    assert credit.chain_based([1, 1, None], [True] * 3, [set()] * 3) == [1, 1, None]


def test_none_leaves_the_mean_and_gets_nothing():
    assert credit.group_advantages([2, None, 1, None]) == [0.5, 0, -0.5, 0]


@pytest.mark.parametrize("returns", [[], [0.7], [None, 0.7, None], [None, None], [-1.0]])
def test_a_group_of_one_or_none_gives_zero(returns):
    assert credit.group_advantages(returns) == [0.0] * len(returns)


RETURNS = st.sampled_from([-1.0, 0.0, 0.1, 1 / 3, 0.5, 0.7, 0.9, 1.0, 2.0])


@given(st.lists(st.none() | RETURNS, max_size=12))
def test_advantages_sum_to_zero_over_the_scored(returns):
    advantages = credit.group_advantages(returns)
    assert len(advantages) == len(returns) and sum(advantages) == pytest.approx(0, abs=1e-12)
    assert all(a == 0 for a, r in zip(advantages, returns, strict=True) if r is None)


@given(RETURNS, st.integers(1, 16), st.integers(0, 3))
def test_equal_returns_give_exactly_zero(value, scored, failed):
    assert credit.group_advantages([value] * scored + [None] * failed) == [0.0] * (scored + failed)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -1.0]), min_size=2, max_size=2), st.booleans())
def test_two_tasks_follow_the_papers_formula(r, used):
    both = r[0] == 1 and r[1] == 1 and used
    expected = [r[0] + both, r[1] + (r[1] == 1 and used)]
    assert credit.skill_integrated(r, [False, used], [set(), {0} if used else set()]) == expected
