"""The loop in the real shop: what was found out in one task is carried by the document and shortens the next ones."""
from fakes import tiny_format
from rise_fakes import ReadingPolicy

from sagelib.rise_credit import RiseCredit
from sagelib.rise_document import Carry
from sagelib.rise_loop import play_trials
from sagelib.rise_prompts import Budgets
from sagelib.rise_rows import training_rows
from sagelib.rise_sequences import CheckedWorld, SequencePlan, build, check_played
from sagelib.rise_types import LoopSettings
from sagelib.shop import ShopPool
from sagelib.shop_expert import read_document, read_goal, reply_to
from sagelib.shop_world import build as build_shop
from sagelib.shop_world import load_cards

BUDGETS = Budgets(max_context=6000, reply_tokens=200, writer_tokens=600, document_tokens=400, trajectory_tokens=5000)


def test_goals_are_read():
    goal = read_goal("Find me soy free protein bars with flavor: cocoa, and size: 6 count, and price lower than 70.00 dollars")
    assert (goal.query, goal.wanted, goal.options) == ("protein bars", "soy free", ("cocoa", "6 count"))
    assert read_goal("Find me hands free headphones with color: red").options == ("red",)


def test_the_expert_with_a_document_solves_more_in_twelve_turns_and_faster(tmp_path):
    build_shop(tmp_path, "smoke", seed=7)
    manifest = build(load_cards(tmp_path, "test"), SequencePlan(world="shop", split="test", K=3, per_family=3, difficulty="none"))
    chains, solved, steps = [s.chain for s in manifest.sequences], {}, {}
    with ShopPool(tmp_path) as pool:
        world = CheckedWorld(pool, manifest)
        for carry in (Carry.document, Carry.none):
            settings = LoopSettings(carry, BUDGETS, max_turns=12)
            trials = play_trials(chains, 1, ReadingPolicy(reply_to), world, tiny_format(), settings, seed=0)
            check_played(manifest, [e.task_id for t in trials for e in t.episodes])
            solved[carry] = [[t.episodes[k].success for t in trials].count(True) for k in range(3)]
            steps[carry] = [sum(t.episodes[k].steps for t in trials) for k in range(3)]
            assert not any(any(e.invalid) for t in trials for e in t.episodes)
            if carry is Carry.document:
                assert all(len(read_document(t.documents[2])) >= len(read_document(t.documents[1])) >= 1 for t in trials)
                rows = training_rows(trials, RiseCredit())
                assert len(rows) == len(chains) * 5 and not any(row.score.invalid for row in rows)
    assert solved[Carry.document][0] == solved[Carry.none][0]                   # the first document is empty
    assert sum(solved[Carry.document][1:]) > sum(solved[Carry.none][1:])
    assert sum(steps[Carry.document][1:]) < sum(steps[Carry.none][1:])
