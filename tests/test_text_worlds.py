"""Text worlds in general: the pool and its supervision on a toy server, the registry, the settings, the setup of engines."""
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from sagelib import building, cli, environments, rise_worlds, run_ids
from sagelib.config import ConfigError
from sagelib.rise_config import RiseEvalConfig, RiseFiguresConfig, RiseSFTConfig, RiseTrainConfig
from sagelib.rise_graph import rise_nodes
from sagelib.text_pool import ENDED, TextPool

TOY = [sys.executable, str(Path(__file__).with_name("toy_server.py"))]


@pytest.fixture
def pool():
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    with TextPool(TOY, workers=2, env=env, seconds=20.0) as pool:
        yield pool


# ---- the pool

def test_visits_are_played_judged_and_closed(pool):
    groups = pool.open([("count-1", 2), ("count-2", 1), ("count-3", 1)])
    assert [len(g) for g in groups] == [2, 1, 1] and groups[2][0].task.instruction == "count to 3"
    visits = [visit for group in groups for visit in group]
    results = pool.step([(visit, "up") for visit in visits])
    assert [(r.output, r.done, r.status) for r in results] == [("at 1", d, "ok") for d in (True, True, False, False)]
    assert [visit.choices for visit in visits] == [(), (), ("up",), ("up",)]
    assert [(o.success, round(o.fraction, 2)) for o in pool.judge(visits)] == [(True, 1), (True, 1), (False, 0.5), (False, 0.33)]
    pool.close(visits)
    [result] = pool.step([(visits[0], "up")])
    assert result.status == "env_failure" and "KeyError" in result.error       # closed: no such visit


def test_what_an_engine_prints_and_raises_does_not_break_the_talk(pool):
    [[visit]] = pool.open([("count-2", 1)])
    assert pool.step([(visit, "noise")])[0].output == "at 0"
    [result] = pool.step([(visit, "fail")])
    assert (result.status, result.error) == ("env_failure", "ValueError: a fault of the engine")
    assert pool.judge([visit])[0].status == "env_failure"                       # never a failed attempt
    [[other]] = pool.open([("count-1", 1)])
    assert pool.step([(other, "up")])[0].done


def test_a_death_fails_the_visits_of_one_process_only_and_numbers_are_not_mixed_up(pool):
    (first,), (second,) = pool.open([("count-2", 1), ("count-2", 1)])           # one on each process
    died, lives = pool.step([(first, "die"), (second, "up")])
    assert (died.status, died.error) == ("env_failure", ENDED) and lives.output == "at 1"
    [[fresh]] = pool.open([("count-1", 1)])
    assert (fresh.worker, fresh.number) == (first.worker, first.number) and fresh.life == first.life + 1
    first.failure = ""                                                          # as a caller that did not look would have it
    assert pool.step([(first, "up")])[0].status == "env_failure" and pool.step([(fresh, "look")])[0].output == "at 0"
    assert [o.status for o in pool.judge([first, second, fresh])] == ["env_failure", "judged", "judged"]


def test_a_process_that_hangs_is_killed(pool):
    [[visit]] = pool.open([("count-1", 1)])
    pool.workers[visit.worker].seconds = 0.5
    [result] = pool.step([(visit, "hang")])
    assert result.status == "env_failure" and result.error == "the world gave no answer within 0.5 s"
    pool.workers[visit.worker].seconds = 20.0
    [[again]] = pool.open([("count-1", 1)])
    assert pool.step([(again, "up")])[0].done


def test_a_task_that_kills_its_process_is_said_and_the_pool_goes_on(pool):
    with pytest.raises(RuntimeError, match="could not open its tasks: the world's process has ended"):
        pool.open([("deadly", 1)])
    with pytest.raises(RuntimeError, match="ValueError"):
        pool.open([("count-x", 1)])
    assert len(pool.open([("count-1", 3)])[0]) == 3


# ---- the registry and the settings

def test_names_of_worlds():
    assert rise_worlds.kind_of("alfworld-smoke") == "alfworld" and rise_worlds.of_profile("shop", "laptop") == "shop-mini"
    assert rise_worlds.resolve("shop", "smoke") == "shop-smoke" and rise_worlds.resolve("shop-mini", "smoke") == "shop-mini"
    assert rise_worlds.resolve("alfworld", "smoke") == "alfworld-smoke"
    assert rise_worlds.suffix("shop-mini") == "" and rise_worlds.suffix("alfworld-mini") == "_alfworld"
    for name in ("shop", "shop-large", "alf-mini", ""):
        with pytest.raises(ValueError, match=f"world = '{name}': there is no such text world; there are shop-mini, "):
            rise_worlds.kind_of(name)
    with pytest.raises(ValueError, match="profile = 'gpu' has no text world"):
        rise_worlds.of_profile("shop", "gpu")


def test_a_world_s_own_numbers_lie_between_the_profile_s_and_the_parameters():
    shop = RiseTrainConfig.from_parameters("laptop", method="skillrise", world=None)
    house = RiseTrainConfig.from_parameters("laptop", method="skillrise", world="alfworld-mini")
    own = rise_worlds.find("alfworld-mini").settings["laptop"]["rise_train"]
    assert (shop.world, house.world) == ("shop-mini", "alfworld-mini") and house.max_turns == own["max_turns"] != shop.max_turns
    assert RiseTrainConfig.from_parameters("laptop", method="grpo", world="alfworld-mini", max_turns=3).max_turns == 3
    assert RiseTrainConfig.from_parameters("laptop", method="grpo", world="alfworld-mini").K == 1
    for cls, given in ((RiseSFTConfig, {}), (RiseEvalConfig, {"method": "sft"}), (RiseFiguresConfig, {})):
        assert cls.from_parameters("smoke", world="alfworld-smoke", **given).world == "alfworld-smoke"
        with pytest.raises(ConfigError, match="world = 'mini': there is no such text world"):
            cls.from_parameters("smoke", world="mini", **given)
    with pytest.raises(ConfigError, match="did you mean 'world'"):
        RiseSFTConfig.from_parameters("smoke", wrld=None)


def test_the_graph_plays_in_the_world_that_is_asked_for():
    assert {n.parameters["world"] for n in rise_nodes("laptop", [0], "alfworld-mini")} == {"alfworld-mini"}
    assert {n.parameters["world"] for n in rise_nodes("laptop", [0])} == {"shop-mini"}


def test_a_run_depends_on_the_code_of_its_own_world_only(tmp_path):
    reached = {file.name for file in run_ids.library_sources("from sagelib import rise_play, rise_worlds")}
    assert "rise_loop.py" in reached and not reached & {"shop.py", "shop_world.py", "alfworld.py", "text_pool.py"}
    hashes = {}
    for kind in ("shop", "alfworld"):
        path = tmp_path / kind / "world.json"
        path.parent.mkdir()
        path.write_text('{"hash": "of the tasks", "seed": 3}')
        assert rise_worlds.stamped(path.parent, kind) == path.parent
        record, written = json.loads(path.read_text()), path.stat().st_mtime_ns
        assert record["tasks_hash"] == "of the tasks" and record["seed"] == 3
        rise_worlds.stamped(path.parent, kind)
        assert path.stat().st_mtime_ns == written                               # nothing new: nothing written
        hashes[kind] = record["hash"]
    assert len({"of the tasks", *hashes.values()}) == 3


@pytest.mark.parametrize("kind, module", [("shop", "shop_server"), ("shop", "text_server"), ("alfworld", "alfworld_engine"),
                                          ("alfworld", "alfworld_problem"), ("alfworld", "rise_talk")])
def test_the_world_s_hash_covers_both_ends(kind, module, tmp_path, monkeypatch):
    (tmp_path / "world.json").write_text('{"hash": "of the tasks"}')
    rise_worlds.stamped(tmp_path, kind)
    before = json.loads((tmp_path / "world.json").read_text())["hash"]
    real = run_ids.code_hash
    monkeypatch.setattr(run_ids, "code_hash", lambda file: "edited" if file.stem == module else real(file))
    rise_worlds.stamped(tmp_path, kind)
    assert json.loads((tmp_path / "world.json").read_text())["hash"] != before


# ---- the command line and the setup

def test_the_command_line_knows_worlds(capsys, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert cli.parse(["reproduce", "--only", "20", "--world", "alfworld"]).world == "alfworld-mini"
    assert cli.parse(["setup", "--world", "alfworld", "--profile", "smoke"]).world == "alfworld-smoke"
    for words, says in ((["reproduce", "--world", "alfworld"], "add --only 29"),
                        (["setup", "--world", "zork"], "no such text world")):
        with pytest.raises(SystemExit):
            cli.parse(words)
        assert says in capsys.readouterr().err


def test_a_missing_compiler_is_said_before_anything_is_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "VENVS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("cmake", "g++") else f"/bin/{tool}")
    with pytest.raises(building.Problem, match=r"alfworld needs g\+\+, cmake, .*sudo apt install cmake g\+\+"):
        environments.build_engine("alfworld")
    assert not list(tmp_path.iterdir())


def test_an_engine_that_is_there_is_not_built_again(monkeypatch, tmp_path):
    commands = []

    def pretend(part, command, *_):
        commands.append([str(word) for word in command])
        (tmp_path / "alfworld").mkdir(exist_ok=True)

    monkeypatch.setattr(building, "VENVS", tmp_path)
    monkeypatch.setattr(environments, "run_logged", pretend)
    environments.build_engine("alfworld")
    wanted = building.pyproject()["tool"]["workbench"]["alfworld"]
    assert len(commands) == 2 and commands[0][1:3] == ["-m", "venv"] and commands[1][-len(wanted):] == wanted
    environments.build_engine("alfworld")
    assert len(commands) == 2
