"""The generated ALFWorld in its real engine: its games, its processes, its expert. Skipped where .venvs/alfworld is missing."""
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest
from conftest import or_skip
from fakes import tiny_format

from sagelib import alfworld, alfworld_official, rise_play, rise_worlds
from sagelib.rise_demos import WIDE, Mixture, demonstrate, examples
from sagelib.rise_document import Carry
from sagelib.rise_sequences import CheckedWorld, ManifestError, check_disjoint
from sagelib.rise_types import LoopSettings
from sagelib.types import StopReason

WORLD = rise_worlds.find("alfworld-smoke")
SPLITS = ("demos", "train", "dev", "test")


@pytest.fixture(scope="module")
def built():
    """The games of alfworld-smoke, made once."""
    return or_skip(WORLD.directory)


@pytest.fixture(scope="module")
def pool(built):
    with WORLD.pool(built, workers=2) as pool:
        yield pool


def rows(folder):
    return [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]


def all_cards(folder):
    return [card for split in SPLITS for card in alfworld.cards(folder, split)]


# ---- the games

def test_equal_seeds_make_equal_games_and_other_seeds_others(built, tmp_path):
    plan = {"demos": (1, 3), "test": (1, 2)}
    made = []
    for n, seed in enumerate((3, 3, 4)):
        alfworld.build(tmp_path / str(n), "some", plan, seed)
        made.append([(tmp_path / str(n) / name).read_bytes() for name in ("houses.json", "tasks.jsonl", "world.json")])
    assert made[0] == made[1] and all(a != b for a, b in zip(made[0], made[2], strict=True))
    world = json.loads(made[0][2])
    assert (world["tasks"], world["games"], world["packages"]["alfworld"]) == ({"demos": 3, "test": 2}, "generated", "0.4.2")


def test_splits_share_no_floor_plan_and_no_task(built):
    scenes = {split: {card.attributes["scene"] for card in alfworld.cards(built, split)} for split in SPLITS}
    assert all(not scenes[a] & scenes[b] for a in SPLITS for b in SPLITS if a < b)
    assert all(scene % 100 < 7 for scene in scenes["test"]) and all(scene % 100 >= 7 for scene in scenes["train"])
    manifests = [rise_play.sequences(built, WORLD, split, 3, whole=True) for split in SPLITS]
    check_disjoint(*manifests)
    assert sum(len(m.tasks) for m in manifests) == len({card.fingerprint for card in all_cards(built)}) == 42


def test_difficulty_rises_within_a_sequence_and_is_the_length_of_the_way_that_won(built):
    manifest = rise_play.sequences(built, WORLD, "train", 3, whole=True)
    lengths = {row["task_id"]: len(row["walkthrough"]) for row in rows(built)}
    for sequence in manifest.sequences:
        assert list(sequence.difficulty) == sorted(sequence.difficulty) == [lengths[t] for t in sequence.task_ids]
    assert manifest.rise >= 1
    assert {row["attributes"]["type"] for row in rows(built)} == {"pick", "clean", "heat", "cool", "two", "look"}


def test_each_kind_is_at_one_place_in_all_tasks_of_a_house_and_never_where_it_is_wanted(built):
    houses = json.loads((built / "houses.json").read_text())
    for row in rows(built):
        house, game = houses[row["family"]], row["game"]
        home = house["homes"][game["object"]].split("|")
        assert game["counts"].keys() == house["homes"].keys() and game["target"] not in (home[0], home[-1])
        assert len(house["receptacles"]) >= 8 and max(Counter(house["homes"].values()).values()) <= 2
        assert len(set(house["receptacles"].values()) | {house["start"]}) == len(house["receptacles"]) + 1


def test_transcripts_are_those_of_the_engine_as_installed(built):
    script = Path(__file__).with_name("alfworld_transcripts.py")
    said = {}
    for kind in ("plain", "ours"):
        command = [alfworld.python(), script, built, kind, "4", "10", "5"]
        done = subprocess.run(list(map(str, command)), env=alfworld.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        said[kind] = [json.loads(line) for line in done.stdout.splitlines()]
    assert said["plain"] == said["ours"]
    turns = [turn for transcript in said["ours"] for turn in transcript]
    assert len(turns) == 4 * 11 and any(turn[3] for turn in turns) and any(turn[1] == "Nothing happens." for turn in turns)


# ---- the processes

def test_a_walkthrough_wins_and_less_does_not(built, pool):
    row = rows(built)[-1]
    [[first, second]] = pool.open([(row["task_id"], 2)])
    for command in row["walkthrough"]:
        result, idle = pool.step([(first, command), (second, "fly to the moon")])
        assert (result.status, idle.output) == ("ok", "Nothing happens.")
    assert result.done and not idle.done
    assert [(o.fraction, o.success, o.status) for o in pool.judge([first, second])] == [
        (1.0, True, "judged"), (0.0, False, "judged")]
    pool.step([(first, "inventory")])                                        # it is over: nothing is undone by going on
    assert pool.judge([first])[0].success
    pool.close([first, second])


def test_groups_keep_their_order_over_workers_and_tell_what_they_are(built, pool):
    asked = [(card.task_id, n + 1) for n, card in enumerate(alfworld.cards(built, "test")[:3])]
    groups = pool.open(asked)
    assert [(g[0].task.task_id, len(g)) for g in groups] == asked
    declared = {card.task_id: card.fingerprint for card in all_cards(built)}
    for group in groups:
        task = group[0].task
        assert task.fingerprint == declared[task.task_id] and task.start.startswith("You see a ") and "task is" not in task.start
    pool.close([visit for group in groups for visit in group])


def test_a_world_of_another_seed_is_refused(built, tmp_path):
    alfworld.build(tmp_path, "other", {"test": (1, 2)}, seed=8)
    manifest = rise_play.sequences(built, WORLD, "test", 3)
    name = manifest.tasks[0].task_id
    text = (tmp_path / "tasks.jsonl").read_text().replace(rows(tmp_path)[0]["task_id"], name)   # the same name for another task
    (tmp_path / "tasks.jsonl").write_text(text)
    with WORLD.pool(tmp_path) as other, pytest.raises(ManifestError, match="another task as"):
        CheckedWorld(other, manifest).open([(name, 1)])


def test_a_dead_process_fails_its_visits_and_is_replaced(built):
    card = alfworld.cards(built, "dev")[0]
    with WORLD.pool(built) as world:
        [[visit]] = world.open([(card.task_id, 1)])
        world.workers[0].process.kill()
        world.workers[0].process.wait()
        [result] = world.step([(visit, "look")])
        assert (result.status, result.done) == ("env_failure", False) and world.judge([visit])[0].status == "env_failure"
        world.close([visit])
        [[again]] = world.open([(card.task_id, 1)])
        assert world.step([(again, "inventory")])[0].output == "You are not carrying anything."
        assert world.step([(visit, "look")])[0].status == "env_failure"      # its number is another's now
    with WORLD.pool(built) as world, pytest.raises(RuntimeError, match="no task 'x/y'"):
        world.open([("x/y", 1)])


def test_a_process_that_does_not_answer_fails_its_visits(built):
    card = alfworld.cards(built, "dev")[0]
    with WORLD.pool(built) as world:
        [[visit]] = world.open([(card.task_id, 1)])
        world.workers[0].seconds = 0.0
        [result] = world.step([(visit, "look")])
        assert result.status == "env_failure" and "no answer within 0 s" in result.error
        world.workers[0].seconds = 600.0
        [[again]] = world.open([(card.task_id, 1)])
        assert world.step([(again, "look")])[0].status == "ok"


# ---- players

def played(cards, pool, choose, turns):
    """Share of tasks that are won within so many turns; ``choose(visit, choices) -> command``."""
    visits = [group[0] for group in pool.open([(card.task_id, 1) for card in cards])]
    results = dict(zip(visits, pool.step([(visit, "look") for visit in visits]), strict=True))
    for _ in range(turns):
        live = [visit for visit in visits if not results[visit].done]
        results |= dict(zip(live, pool.step([(visit, choose(visit)) for visit in live]), strict=True))
    won = fmean(outcome.success for outcome in pool.judge(visits))
    pool.close(visits)
    return won


def test_the_expert_wins_nearly_all_and_chance_next_to_nothing(built, pool):
    cards = all_cards(built)
    format, chains = tiny_format(), [s.chain for split in SPLITS for s in rise_play.sequences(built, WORLD, split, 1).sequences]
    trials = demonstrate(chains, pool, format, LoopSettings(Carry.none, WIDE, 50), WORLD.reply_to, Mixture(), 0)
    assert fmean(t.episodes[0].success for t in trials) >= 0.95 and len(trials) == len(cards) == 42
    rng, homes = random.Random(0), {row["task_id"]: row["walkthrough"] for row in rows(built)}
    words = sorted({command for commands in homes.values() for command in commands})
    assert played(cards, pool, lambda visit: rng.choice(words), 30) <= 0.05


def test_with_a_document_later_tasks_are_won_in_fewer_turns(built, pool):
    manifest = rise_play.sequences(built, WORLD, "train", 3, whole=True)
    chains, steps, wins = [s.chain for s in manifest.sequences], {}, {}
    for carry in (Carry.document, Carry.none):
        settings = LoopSettings(carry, WIDE, 50)
        trials = demonstrate(chains, CheckedWorld(pool, manifest), tiny_format(), settings, WORLD.reply_to, Mixture(), 0)
        steps[carry] = [sum(t.episodes[k].steps for t in trials) for k in range(3)]
        wins[carry] = [sum(t.episodes[k].success for t in trials) for k in range(3)]
        assert not any(any(e.invalid) for t in trials for e in t.episodes) and len(examples(trials)) == len(chains) * (
            5 if carry is Carry.document else 3)
        assert {e.stop for t in trials for e in t.episodes} == {StopReason.completed}
    assert wins[Carry.document] == wins[Carry.none] == [len(chains)] * 3
    assert steps[Carry.document][0] == steps[Carry.none][0]                  # the first document is empty
    assert sum(steps[Carry.document][1:]) < sum(steps[Carry.none][1:])


# ---- official games, where there are any

def test_official_games_are_found_and_played(built, tmp_path, monkeypatch):
    command = [str(alfworld.python()), "-m", "sagelib.alfworld_export", str(built), str(tmp_path)]
    subprocess.run(command, env=alfworld.environment(), check=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    folder = alfworld_official.index(tmp_path / "index")
    world = json.loads((folder / "world.json").read_text())
    assert (world["games"], world["tasks"]) == ("official", {"demos": 12, "train": 12, "dev": 6, "test": 12})
    assert alfworld_official.index(folder) == folder
    cards = alfworld.cards(folder, "test")
    ours = {row["fingerprint"]: row["walkthrough"] for row in rows(built)}
    assert {card.family.split("/")[0] for card in cards} == {"test"} and all(card.fingerprint in ours for card in cards)
    with WORLD.pool(folder) as pool:
        [[visit]] = pool.open([(cards[0].task_id, 1)])
        assert visit.task.start.startswith("You are in the middle of a room.") and visit.task.fingerprint == cards[0].fingerprint
        for command in ours[cards[0].fingerprint]:
            [result] = pool.step([(visit, command)])
        assert result.done
    assert rise_worlds.resolve("alfworld", "laptop") == "alfworld-official"
    monkeypatch.delenv("ALFWORLD_DATA")
    assert rise_worlds.resolve("alfworld", "laptop") == "alfworld-mini"
    with pytest.raises(alfworld_official.OfficialMissing, match="json_2.1.1"):
        alfworld_official.index(tmp_path / "index")
