"""ScienceWorld's real engine: its tasks, its processes, equal texts, gold paths. Skipped where it or Java is missing."""
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from conftest import or_skip
from fakes import tiny_format

from sagelib import java, rise_play, rise_worlds, scienceworld, worlds
from sagelib.building import Problem
from sagelib.rise_demos import WIDE, Mixture, demonstrate, examples
from sagelib.rise_document import Carry
from sagelib.rise_sequences import CheckedWorld, ManifestError, check_disjoint
from sagelib.rise_types import LoopSettings
from sagelib.runs import ROOT
from sagelib.text_files import WorldMissing
from sagelib.types import StopReason

WORLD = rise_worlds.find("scienceworld-smoke")
SPLITS = ("demos", "train", "dev", "test")
FRICTION, CONDUCTIVITY = "inclined-plane-friction-named-surfaces", "test-conductivity"


@pytest.fixture(scope="session")
def built():
    """data/scienceworld-smoke, made by the engine if it is not there (half a minute on a free core)."""
    or_skip(scienceworld.python)
    return scienceworld.ensure("scienceworld-smoke")


@pytest.fixture
def pool(built):
    with WORLD.pool(built, workers=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def manifests(built):
    return {split: rise_play.sequences(built, WORLD, split, 3, whole=True) for split in SPLITS}


def engine_says(code: str) -> list:
    """What a program prints as JSON in the engine's own environment."""
    begin = "import json\nfrom sagelib.scienceworld_engine import Engine, Game\nengine = Engine()\n"
    done = subprocess.run([scienceworld.python(), "-c", f"{begin}{code}\nengine.close()"], cwd=ROOT, capture_output=True,
                          text=True, timeout=280, env=scienceworld.environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def java_processes(of: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(of).children(recursive=True) if child.name() == "java"]


def gone(processes, seconds=20) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


# ---- what it needs

def test_a_missing_java_is_one_line_with_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find() is None
    said = java.missing(11)
    assert said.startswith("it runs on Java, and there is no java on the path. Fix: install Java 11 or newer")
    assert "sudo apt install default-jre-headless" in said and "\n" not in said
    with pytest.raises(Problem, match="scienceworld-smoke cannot be set up: it runs on Java.*default-jre-headless"):
        worlds.build_text_world("scienceworld-smoke")
    monkeypatch.setenv("SAGELIB_SCIENCEWORLD_PYTHON", sys.executable)          # an environment that is there
    with pytest.raises(WorldMissing, match="cannot start: it runs on Java.*default-jre-headless"):
        scienceworld.python()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"$JAVA_HOME = {tmp_path} has no bin/java" in java.missing(11)


@pytest.mark.parametrize("said, number, text", [
    ('openjdk version "17.0.15" 2025-04-15', 17, "17.0.15"), ('java version "1.8.0_392"', 8, "1.8.0_392"),
    ('openjdk version "21" 2023-09-19', 21, "21"), ("no java for you", 0, "no java for you")])
def test_an_old_java_is_named_with_its_version(monkeypatch, tmp_path, said, number, text):
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.version(str(program)) == (number, text)
    assert (java.missing(11) is None) == (number >= 11)
    if number < 11:
        assert f"it runs on Java 11 or newer, and {program} is {text}. Fix: install Java 11" in java.missing(11)


def test_a_missing_environment_and_a_missing_list_name_their_command(monkeypatch, tmp_path):
    monkeypatch.setenv("SAGELIB_SCIENCEWORLD_PYTHON", str(tmp_path / "python"))
    with pytest.raises(WorldMissing, match="./workbench setup --world scienceworld"):
        scienceworld.ensure("scienceworld-smoke-of-nowhere")
    with pytest.raises(WorldMissing, match="world.json is missing"):
        scienceworld.ScienceWorldPool(tmp_path)


# ---- tasks

def test_splits_are_the_package_s_and_share_nothing(built, manifests):
    ids = {task: [int(r["task_id"].split("/")[1]) for r in scienceworld.rows(built) if r["task_id"].startswith(task)]
           for task in (FRICTION, CONDUCTIVITY)}
    official = {task: engine_says(f"print(json.dumps(Game(engine, {task!r}, 0).splits()))") for task in ids}
    assert {split: len(v) for split, v in official[FRICTION].items()} == {"train": 692, "dev": 346, "test": 348}
    for row in scienceworld.rows(built):
        task, variation = row["task_id"].split("/")
        assert int(variation) in official[task]["train" if row["split"] in ("demos", "train") else row["split"]]
    assert len(ids[FRICTION]) == 48 and len(ids[CONDUCTIVITY]) == 24
    check_disjoint(*manifests.values())
    families = {split: {s.family for s in m.sequences} for split, m in manifests.items()}
    assert all(not families[a] & families[b] for a in SPLITS for b in SPLITS if a < b) and len(families["test"]) == 3


def test_what_was_true_in_one_task_of_a_family_is_true_in_all(built):
    from sagelib.scienceworld_expert import read_goal
    facts: dict[str, set] = {}
    for row in scienceworld.rows(built):
        learnt = read_goal(row["instruction"]).learnt(row["answer"], True)
        facts.setdefault(row["family"], set()).add(json.dumps(learnt, sort_keys=True))
    assert len(facts) == 12 and all(len(found) == 1 for found in facts.values())


def test_difficulty_rises_within_a_sequence(manifests, built):
    plans = {row["task_id"]: len(row["plan"]) for row in scienceworld.rows(built)}
    for manifest in manifests.values():
        assert manifest.rise > 0 and manifest.plan["difficulty"] == "plan_length"
        for sequence in manifest.sequences:
            assert list(sequence.difficulty) == sorted(sequence.difficulty) == [plans[t] for t in sequence.task_ids]
    things = [s for s in manifests["test"].sequences if s.family.startswith("conductivity")]
    assert {s.difficulty for s in things} == {(3.0, 5.0, 5.0)}          # from another room it takes two actions more


# ---- the engine

@pytest.mark.usefixtures("built")
def test_equal_actions_see_equal_texts_in_another_process_and_beside_other_games():
    """Animals, plants and the order of things in a room are the parts that differ in the package as it is."""
    code = """
def play(task, variation):
    game, seen = Game(engine, task, variation), []
    for action in ("teleport to outside", "look around", "wait1", "look around", "teleport to art studio", "look around"):
        game.step(action)
        seen.append(game.shown)
    game.close()
    return [game.start, *seen]
others = [Game(engine, "find-plant", n) for n in range(OTHERS)]
for game in others: game.step("teleport to greenhouse")
print(json.dumps([play("find-animal", 2), play("boil", 1), play("find-animal", 2)]))"""
    first, second = engine_says(code.replace("OTHERS", "0")), engine_says(code.replace("OTHERS", "3"))
    assert first == second and first[0] == first[2] != first[1]
    assert "butterfly" in str(first[0]) and "wood cup" in first[0][-1]


@pytest.mark.usefixtures("built")
def test_the_package_s_own_solutions_get_the_full_score_and_chance_does_not():
    """Four types of short tasks; benchmarks/scienceworld_cost.py does all thirty."""
    code = """
import random
found = {}
for task in ("find-plant", "lifespan-shortest-lived", "inclined-plane-friction-named-surfaces", "use-thermometer"):
    for variation in (0, 1):
        game = Game(engine, task, variation, gold=True)
        path = game.gold()
        game.close()
        scores = []
        for player in ("gold", "random"):
            game, rng = Game(engine, task, variation), random.Random(7)
            valid = game.valid()
            for action in path:
                game.step(action if player == "gold" else rng.choice(valid))
            scores.append(max(0.0, game.score))
            game.close()
        found[f"{task}/{variation}"] = scores
print(json.dumps(found))"""
    scores = engine_says(code)
    assert len(scores) == 8 and {gold for gold, _ in scores.values()} == {1.0}
    assert max(luck for _, luck in scores.values()) < 1.0


@pytest.mark.usefixtures("built")
def test_wrong_names_and_too_many_games_are_named():
    code = """
import sagelib.scienceworld_engine as module
said = []
for task, variation in (("find-plants", 0), ("find-plant", 300), ("find-plant", -1)):
    try: Game(engine, task, variation)
    except KeyError as error: said.append(str(error))
module.MOST_GAMES = 2
games = [Game(engine, "find-plant", n) for n in (0, 1)]
try: Game(engine, "find-plant", 2)
except ValueError as error: said.append(str(error))
games[0].close()
Game(engine, "find-plant", 2)
print(json.dumps(said))"""
    unknown, beyond, below, many = engine_says(code)
    assert "no task 'find-plants'; there are boil, " in unknown
    assert "no variation 300 of find-plant: it has 300" in beyond and "no variation -1" in below
    assert many == "2 games are open in this process already; close some, or use more workers"


# ---- the pool

def test_visits_are_played_and_judged(built, pool, manifests):
    rows = {row["task_id"]: row for row in scienceworld.rows(built)}
    tasks = [sequence.task_ids[-1] for sequence in manifests["test"].sequences][::2]
    world = CheckedWorld(pool, manifests["test"])
    for right, wrong in world.open([(task, 2) for task in tasks]):
        row = rows[right.task.task_id]
        assert right.task.instruction == row["instruction"] and right.task.start.count("\n") == 0
        assert world.step([(right, "dance")])[0].output == "No known action matches that input."
        for action in row["plan"]:
            results = world.step([(right, action), (wrong, action)])[:1]
        assert results[0].done and results[0].status == "ok"
        assert [(o.fraction, o.success) for o in world.judge([right])] == [(1.0, True)]
        world.close([right, wrong])
    with pytest.raises(ManifestError, match="none of the manifests"):
        world.open([(manifests["train"].tasks[0].task_id, 1)])


def test_a_wrong_answer_ends_the_attempt_at_zero(built, pool):
    row = next(r for r in scienceworld.rows(built) if r["family"].startswith("friction"))
    a, b = row["family"].removeprefix("friction/").split(" and ")
    other = b if row["answer"] == a else a
    [[visit]] = pool.open([(row["task_id"], 1)])
    pool.step([(visit, row["plan"][0])])
    [result] = pool.step([(visit, row["plan"][1].replace(row["answer"], other))])
    assert result.done
    assert [(o.fraction, o.success, o.status) for o in pool.judge([visit])] == [(0.0, False, "judged")]
    [late] = pool.step([(visit, row["plan"][1])])                    # what comes after the end changes nothing
    assert late.done and pool.judge([visit])[0].fraction == 0.0


def test_a_dead_java_is_an_environment_failure_and_is_replaced(built, pool):
    task = scienceworld.rows(built)[0]["task_id"]
    [[visit]] = pool.open([(task, 1)])
    [machine] = java_processes(pool.workers[0].process.pid)
    machine.kill()
    [result] = pool.step([(visit, "look around")])
    assert result.status == "env_failure" and pool.judge([visit])[0].status == "env_failure"
    pool.close([visit])
    [[again]] = pool.open([(task, 1)])
    assert pool.step([(again, "look around")])[0].status == "ok"
    [machine] = java_processes(pool.workers[0].process.pid)
    pool.workers[0].process.kill()                                   # the worker itself
    assert pool.step([(again, "look around")])[0].status == "env_failure" and gone([machine])
    assert len(pool.open([(task, 2)])[0]) == 2


def test_memory_is_bounded_by_the_options_of_java(built, pool):
    pool.open([(scienceworld.rows(built)[0]["task_id"], 1)])
    [machine] = java_processes(pool.workers[0].process.pid)
    assert "-Xmx1024m" in machine.cmdline() and "-XX:+ExitOnOutOfMemoryError" in machine.cmdline()


def test_no_process_stays_when_the_trainer_is_killed(built):
    task = scienceworld.rows(built)[0]["task_id"]
    code = (f"import time\nfrom pathlib import Path\nfrom sagelib.scienceworld import ScienceWorldPool\n"
            f"pool = ScienceWorldPool(Path({str(built)!r}), 2)\n"
            f"pool.open([({task!r}, 1), ({task!r}, 1)])\nprint('open', flush=True)\ntime.sleep(300)")
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout.readline() == "open\n"
        below = psutil.Process(parent.pid).children(recursive=True)
        assert sum(process.name() == "java" for process in below) == 2
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(below)
    finally:
        parent.kill()
        parent.wait()


def test_the_trainer_does_not_import_the_package():
    code = "import sys; from sagelib import rise_worlds; rise_worlds.find('scienceworld-mini'); " \
           "print([m for m in sys.modules if m.startswith(('py4j', 'scienceworld'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# ---- demonstrations

@pytest.fixture(scope="module")
def played(built, manifests):
    """(mixture, turns) -> trials of the sequences of ``demos``: the expert and a guessing one, with and without a document."""
    chains, seen = [s.chain for s in manifests["demos"].sequences], {}
    with WORLD.pool(built) as pool:
        world = CheckedWorld(pool, manifests["demos"])
        for name, carry, mixture, turns in (("guess", Carry.document, Mixture(hasty=1.0), 6),
                                            ("plain", Carry.none, Mixture(hasty=1.0), 6), ("careful", Carry.none, Mixture(), 20)):
            settings = LoopSettings(carry, WIDE, turns)
            seen[name] = demonstrate(chains, world, tiny_format(), settings, WORLD.reply_to, mixture, 0)
    return seen


def solved(trials, family=""):
    """Share of tasks solved at each position."""
    mine = [t for t in trials if t.chain.scenario_id.startswith(family)]
    return [sum(t.episodes[k].success for t in mine) / len(mine) for k in range(3)]


def test_with_its_document_the_expert_solves_every_later_task(played):
    assert solved(played["guess"])[1:] == [1.0, 1.0] and solved(played["guess"])[0] < 1
    assert max(solved(played["plain"])) < 1
    first = played["guess"][0]
    assert first.documents[0] == "" and first.documents[1].startswith("Known here:\n- ")
    assert first.documents[2] == first.documents[1]
    assert {e.stop for t in played["guess"] for e in t.episodes} == {StopReason.completed}


def test_the_experiment_tells_what_conducts(played):
    assert solved(played["careful"], "conductivity") == [1.0, 1.0, 1.0]
    longest = max(e.steps for t in played["careful"] for e in t.episodes)
    assert 10 < longest <= 17


def test_they_become_examples_of_both_roles(played):
    rows = examples(played["guess"])
    assert len(rows) == 5 * len(played["guess"])
    assert all(any(label != -100 for label in row["labels"]) for row in rows)
