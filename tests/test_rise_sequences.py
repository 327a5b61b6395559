"""Sequences: what a plan makes, what a manifest refuses, and that the leaks of the released splits cannot happen."""
import json
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagelib.config import ConfigError
from sagelib.rise_sequences import (
    CheckedWorld,
    ManifestError,
    SequencePlan,
    TaskCard,
    build,
    check_disjoint,
    check_played,
    fingerprint,
    read,
    repeated,
    write,
)


def cards(count, family="heat", first=0, objects=("mug", "cup", "egg")):
    return [TaskCard(f"{family}-{i:03d}", family, fingerprint(family, i),
                     {"plan_length": i % 7, "object": objects[i % len(objects)]}) for i in range(first, first + count)]


def plan(**values):
    return SequencePlan(**{"world": "w", "split": "train", **values})


@settings(max_examples=40)
@given(st.integers(0, 25), st.integers(1, 6), st.integers(0, 99), st.sampled_from(["strata", "sorted", "random"]),
       st.sampled_from([None, "object"]))
def test_every_task_is_in_one_sequence_or_left_out(count, K, seed, order, distinct):
    manifest = build(cards(count) + cards(5, "cool"), plan(K=K, seed=seed, order=order, distinct=distinct))
    listed = [t for s in manifest.sequences for t in s.task_ids]
    assert max(Counter(listed + list(manifest.left_out)).values()) == 1
    assert len(listed) + len(manifest.left_out) == count + 5
    assert len(manifest.sequences) == count // K + 5 // K
    for s in manifest.sequences:
        assert len(s.task_ids) == K and {t.split("-")[0] for t in s.task_ids} == {s.family}
        assert order == "random" or list(s.difficulty) == sorted(s.difficulty)


def test_strata_rise_in_every_sequence():
    nine = [TaskCard(f"t{i}", "f", fingerprint(i), {"plan_length": i}) for i in range(9)]
    manifest = build(nine, plan(K=3))
    assert [[int(d) // 3 for d in s.difficulty] for s in manifest.sequences] == [[0, 1, 2]] * 3
    assert manifest.rise == 6.0                                      # the strata's means are 1, 4, 7
    assert build(nine, plan(K=3, difficulty="none")).rise == 0.0


def test_equally_difficult_tasks_are_not_ordered_by_their_names():
    firsts = [build(cards(9), plan(K=3, difficulty="none", seed=seed)).sequences[0].task_ids for seed in range(20)]
    assert sum(list(ids) == sorted(ids) for ids in firsts) < 12          # 1 in 6 by chance, all of them if names decided


def test_distinct_values_within_a_sequence_where_there_are_some():
    manifest = build(cards(9), plan(K=3, distinct="object", order="sorted"))
    objects = {c.task_id: c.attributes["object"] for c in manifest.tasks}
    assert [len({objects[t] for t in s.task_ids}) for s in manifest.sequences] == [3, 3, 3]


def test_the_seed_decides_and_the_order_of_the_tasks_does_not():
    given_cards = cards(20)
    shuffled = random.Random(1).sample(given_cards, 20)
    assert build(given_cards, plan(seed=3)) == build(shuffled, plan(seed=3))
    assert build(given_cards, plan(seed=3)).hash != build(given_cards, plan(seed=4)).hash
    alone = build(given_cards, plan(seed=3)).sequences
    assert alone == build(given_cards + cards(9, "cool"), plan(seed=3)).sequences[-len(alone):]    # families are apart


@pytest.mark.parametrize("K", [1, 2, 4, 6])
def test_one_panel_for_every_K(K):
    """Test-time scaling: the same tasks, cut into sequences of each length."""
    manifest = build(cards(40), plan(split="test", K=K, per_family=12, seed=5))
    panel = build(cards(40), plan(split="test", K=1, per_family=12, seed=5))
    assert manifest.fingerprints == panel.fingerprints and len(panel.tasks) == 12


def test_a_panel_that_does_not_come_out_even_is_refused():
    with pytest.raises(ManifestError, match="1 of 10 tasks fill no sequence of K = 3"):
        build(cards(10), plan(K=3, whole=True))
    assert build(cards(10), plan(K=3)).left_out == tuple(c.task_id for c in cards(10)
                                                         if c.task_id not in build(cards(10), plan(K=3)).fingerprints)


def test_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="did you mean 'plan_length'"):
        plan(difficulty="plan_lenght")


def test_no_task_twice_under_any_name():
    with pytest.raises(ManifestError, match="task_id heat-000 occurs 2 times"):
        build([*cards(3), cards(1)[0]], plan())
    twin = TaskCard("another name", "heat", cards(1)[0].fingerprint, {"plan_length": 1})
    with pytest.raises(ManifestError, match="fingerprint .* occurs 2 times"):
        build([*cards(3), twin], plan())


def test_repeated_attempts_are_said_to_be_that():
    assert repeated(cards(1)[0], 3).task_ids == ("heat-000",) * 3


# ---- files

def test_a_manifest_comes_back_as_it_was(tmp_path):
    manifest = build(cards(10), plan())
    assert write(manifest, tmp_path / "a" / "train.json") == manifest.hash
    assert read(tmp_path / "a" / "train.json") == manifest


@pytest.mark.parametrize("edit", [
    lambda d: d["sequences"].pop(), lambda d: d["tasks"][0].update(fingerprint="0"), lambda d: d["plan"].update(seed=9),
    lambda d: d["sequences"][0]["task_ids"].reverse(), lambda d: d.pop("hash"), lambda d: d.update(hash="0" * 64)])
def test_an_edited_manifest_is_refused(tmp_path, edit):
    path = tmp_path / "train.json"
    write(build(cards(10), plan()), path)
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match="it says"):
        read(path)


# ---- splits

def test_train_and_test_are_compared_by_content():
    train, test = build(cards(9), plan()), build(cards(9, first=9), plan(split="test"))
    check_disjoint(train, test)
    renamed = [TaskCard(f"x{i}", "heat", c.fingerprint, c.attributes) for i, c in enumerate(cards(9, first=8))]
    with pytest.raises(ManifestError, match="train and test share 1 tasks, such as heat-008, x0"):
        check_disjoint(train, build(renamed, plan(split="test")))


class ShopWorker:
    """The released WebShop in small: tasks are numbers in a list that each worker shuffles with a seed of its own."""

    def __init__(self, seed, goals=200):
        self.goals = list(range(goals))
        random.Random(seed).shuffle(self.goals)
        self.opened = []

    def card(self, index):
        return TaskCard(f"goal-{index}", "shop", fingerprint("buy", self.goals[index]), {"plan_length": 1})

    def open(self, requests):
        groups = [[SimpleNamespace(task=self.card(int(task_id.split("-")[1]))) for _ in range(copies)]
                  for task_id, copies in requests]
        self.opened += [h for group in groups for h in group]
        return groups

    def close(self, handles):
        for handle in handles:
            self.opened.remove(handle)


def test_the_released_split_leak_is_found():
    """Goals 0..49 are for validation, the rest for training; the validation workers were given another seed."""
    trainer, validator = ShopWorker(seed=0), ShopWorker(seed=1000)
    train = build([trainer.card(i) for i in range(50, 200)], plan(K=1))
    leaked = build([validator.card(i) for i in range(50)], plan(K=1, split="validation"))
    with pytest.raises(ManifestError, match="validation and train share|train and validation share"):
        check_disjoint(train, leaked)
    sound = build([trainer.card(i) for i in range(50)], plan(K=1, split="validation"))
    check_disjoint(train, sound)
    with pytest.raises(ManifestError, match="another task as 'goal-0'.*another seed"):
        CheckedWorld(validator, sound).open([("goal-0", 2)])
    assert not validator.opened                                        # nothing was left open
    assert len(CheckedWorld(trainer, sound).open([("goal-0", 2)])[0]) == 2


def test_a_task_that_was_not_declared_is_not_opened():
    worker = ShopWorker(seed=0)
    world = CheckedWorld(worker, build([worker.card(i) for i in range(3)], plan(K=1)))
    with pytest.raises(ManifestError, match="'goal-7' is in none"):
        world.open([("goal-1", 1), ("goal-7", 1)])
    assert not worker.opened


def test_a_panel_is_played_whole_and_once():
    """Workers that each draw their own validation tasks (as released) repeat some and miss others."""
    panel = build(cards(6), plan(K=1, split="test"))
    check_played(panel, list(panel.fingerprints) * 4, copies=4)
    rng = random.Random(0)
    with pytest.raises(ManifestError, match="each of 6 tasks 1 times"):
        check_played(panel, [rng.choice(list(panel.fingerprints)) for _ in range(6)])
    with pytest.raises(ManifestError, match=r"not in the panel: \['other'\]"):
        check_played(panel, [*panel.fingerprints, "other"])
