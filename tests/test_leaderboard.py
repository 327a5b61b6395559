"""`./workbench leaderboard`: recorded episodes, played again in the real engine, as AppWorld's own tools read them."""
import json
import subprocess
from types import SimpleNamespace

import pytest
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format
from run_maker import make_run

from sagelib import cli, leaderboard, stream
from sagelib.appworld import EnginePool, Limits
from sagelib.config import EvalConfig
from sagelib.datasets import load_dataset, load_expert, world_dir
from sagelib.environments import appworld_env
from sagelib.evaluate import evaluate
from sagelib.expert import expert_replies
from sagelib.play import chain_record, settings
from sagelib.prompts import reply
from sagelib.replay import SIDE, ReplayPool, libraries
from sagelib.retrieval import Retriever
from sagelib.rollout import RolloutSettings
from sagelib.runs import RunError, content_hash, world_record
from sagelib.scores import summarise
from sagelib.types import StopReason

DONE = "apis.supervisor.complete_task()"
NO_JSON = "class Odd: pass\napis.spotify.login(username={Odd()}, password=Odd())"   # the engine's log of calls cannot hold it
CRASH = "import os\nos.sys.modules['posix'].abort()"
WRONG = {
    "nothing": ["I do not know."],
    "odd": [reply("Odd.", NO_JSON), reply("Done.", DONE)],
    "slow": [reply("Slow.", "while True: pass")],
    "cut": [reply("Long.", "#" * 9000)],
    "crash": [reply("Gone.", CRASH)],
}
PLAYS = {   # (split, scenario, play): how its three tasks are played; the rest are modes of the expert
    ("test_normal", 0, 0): ["skills", "skills", "skills"], ("test_normal", 0, 1): ["skills", "nothing", "odd"],
    ("test_normal", 1, 0): ["skills+unclosed", "slow", "skills"], ("test_normal", 1, 1): ["cut", "crash", "plain"],
    ("test_challenge", 0, 0): ["nothing", "skills", "odd"], ("test_challenge", 1, 0): ["nothing", "nothing", "nothing"],
}
TGC = {"test_normal": [83.3, 33.3], "test_challenge": [16.7]}   # per play
SGC = {"test_normal": [50.0, 0.0], "test_challenge": [0.0]}


def config(**more):
    given = {"method": "sage", "scenarios": 2, "plays": {"test_normal": 2}, "max_turns": 5, "max_tokens_per_turn": 8000,
             "max_context": 40000, "temperature": 0.5}
    return EvalConfig.from_parameters("smoke", **given | more)


def scripts(world, split, chains, plays):
    """[row][position] -> replies; an expert writes only the functions that its library does not hold."""
    rows = []
    for i, one in enumerate(chains):
        for play in range(plays):
            have, row = set(), []
            for task, mode in zip(one.task_ids, PLAYS[split, i, play], strict=True):
                if mode in WRONG:
                    row.append(WRONG[mode])
                    continue
                expert = load_expert(world, task)
                row.append([text for text, _ in expert_replies(expert, have, mode)])
                read = expert["read"]["helpers"] if expert.get("read") else []
                have |= {function["name"] for function in [*read, *expert["helpers"], expert["main"]]}
            rows.append(row)
    return rows


def write_run(directory, cfg, rows):
    """A directory as 04_evaluate leaves it. ``rows``: split -> (table, records)."""
    directory.mkdir(parents=True)
    table = [{"method": cfg.method, "split": split, **summarise(frame)} for split, (frame, _) in rows.items()]
    (directory / "results.json").write_text(json.dumps({"table": table}))
    for split, (_, records) in rows.items():
        (directory / f"episodes_{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    record = {"run_id": "0a1b2c3d4e", "notebook": "04_evaluate", "profile": "smoke", "seed": 0, "parameters": {}, "reason": "",
              "parameters_seen": cfg.model_dump(mode="json"), "world": world_record(cfg.world), "status": "done", "inputs": [],
              "started": "2026-01-01T00:00:00Z", "artifacts": {"results.json": content_hash(directory / "results.json")}}
    (directory / "run.json").write_text(json.dumps(record))
    return directory


@pytest.fixture(scope="module")
def played(mini_world, appworld_python, tmp_path_factory):
    """A run of twelve and six episodes in the real engine: solved, failed, cut off, too slow, crashed."""
    cfg, rows = config(), {}
    world = world_dir(cfg.world)
    with EnginePool(world, parallel=2, limits=Limits(step_s=cfg.step_seconds)) as pool:
        for split in cfg.splits:
            chains, families = load_dataset(cfg.world, split, cfg.scenarios)
            plays = cfg.plays.get(split, 1)
            said = scripts(world, split, chains, plays)
            policy = ReplayPolicy(tiny_format(), lambda position, row, turn, said=said: said[row][position][turn])
            frame, runs = evaluate(policy, pool, tiny_format(), chains, families, settings(cfg, True), seed=0, plays=plays)
            rows[split] = frame, [chain_record(r, [None] * 3) for r in runs]
    return write_run(tmp_path_factory.mktemp("runs") / "04_evaluate-0a1b2c3d4e", cfg, rows)


@pytest.fixture(scope="module")
def exported(played, tmp_path_factory):
    """(folder, rows, blocks that were answered otherwise)"""
    out = tmp_path_factory.mktemp("out") / "board"
    rows, other = leaderboard.export(played, out)
    return out, rows, other


def task_folder(out, experiment, task):
    return out / "experiments" / "outputs" / experiment / "tasks" / task


# ---- the real engine

@pytest.mark.timeout(900)
def test_appworld_s_own_evaluator_gives_the_run_s_numbers(played, exported):
    out, rows, other = exported
    table = {row["split"]: row for row in json.loads((played / "results.json").read_text())["table"]}
    for split in TGC:
        mine = [row for row in rows if row["split"] == split]
        assert ([row["tgc"] for row in mine], [row["sgc"] for row in mine]) == (TGC[split], SGC[split])
        assert sum(TGC[split]) / len(mine) == pytest.approx(table[split]["tgc"], abs=0.05)
        assert sum(SGC[split]) / len(mine) == pytest.approx(table[split]["sgc"], abs=0.05)
        assert {(row["tasks"], row["of"]) for row in mine} == {(6, 21 if split == "test_normal" else 6)}
        said = json.loads((out / "experiments/outputs" / mine[0]["experiment"] / "evaluations" / f"{split}.json").read_text())
        assert said["aggregate"] == {"task_goal_completion": TGC[split][0], "scenario_goal_completion": SGC[split][0]}
    stops = [e["stop"] for records in leaderboard.load(played)[2].values() for r in records for e in r["episodes"]]
    assert {"completed", "no_code", "timeout", "max_tokens", "died"} == set(stops)   # all of them were played again
    assert other == 0


@pytest.mark.timeout(900)
def test_a_task_s_folder_is_what_the_engine_writes_and_loaded_skills_are_in_it(exported, played):
    out, rows, _ = exported
    record = leaderboard.load(played)[2]["test_normal"][0]
    first, second = record["episodes"][:2]
    folder = task_folder(out, rows[0]["experiment"], second["task_id"])
    names = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    assert [n for n in names if n.startswith("logs/")] == ["logs/api_calls.jsonl", "logs/environment_io.md"]
    assert len([n for n in names if n.startswith("dbs/")]) == 13 and "dbs/model_hashes.json" in names
    assert {"version/code.txt", "version/data.txt", "evaluation/report.md"} < set(names)
    blocks = [turn["code"] for turn in second["turns"]]
    log = (folder / "logs" / "environment_io.md").read_text()
    assert second["skills_shown"] and log.count("### Environment Interaction") == 1 + len(blocks)
    before = log.split("### Environment Interaction 2")[0]
    assert all(source in before for source in record["libraries"][0].values()) and not any(block in before for block in blocks)
    calls = [json.loads(line) for line in (folder / "logs" / "api_calls.jsonl").read_text().splitlines()]
    assert calls[0]["url"] == "/supervisor/profile" and calls[-1]["url"] == "/supervisor/message"   # complete_task
    start = task_folder(out, rows[0]["experiment"], first["task_id"])
    assert (start / "logs" / "environment_io.md").read_text().count("Interaction") == len(first["turns"])   # no library yet


@pytest.mark.timeout(900)
def test_appworld_packs_the_folder_and_makes_an_entry_of_it(exported, appworld_python):
    out, rows, _ = exported
    names = [row["experiment"] for row in rows if "play1" in row["experiment"]]
    code = ("import json, sys\nfrom appworld.leaderboard import make_leaderboard_entry, pack_experiment\n"
            "for name in sys.argv[1:]:\n"
            "    pack_experiment(name, 'test_' + name.rsplit('_', 1)[1], 'SAGE', 'tip', 'tiny', 'tip', 'https://example.com')\n"
            "print(json.dumps(make_leaderboard_entry(*sys.argv[1:])))\n")
    said = subprocess.run([appworld_python, "-c", code, *names], capture_output=True, text=True, check=True, cwd=out,
                          env=appworld_env() | {"APPWORLD_ROOT": str(out)}).stdout
    entry = json.loads(said.splitlines()[-1])
    for split in TGC:
        scores = entry[split]["all"]
        assert (scores["task_goal_completion"], scores["scenario_goal_completion"]) == (TGC[split][0], SGC[split][0])
        assert scores["interactions"] > 0
        assert (out / "experiments/outputs" / f"smoke_sage_0a1b2c3d4e_play1_{split}" / "leaderboard.bundle").stat().st_size > 1000


@pytest.mark.timeout(900)
def test_a_difference_names_the_task(exported, played):
    out, rows, _ = exported
    records, row = leaderboard.load(played)[2]["test_normal"], {"tgc": 58.33, "sgc": 25.0}
    found = [json.loads((out / "experiments/outputs" / r["experiment"] / "evaluations/test_normal.json").read_text())
             for r in rows if r["split"] == "test_normal"]
    leaderboard.agree("test_normal", records, found, row)
    with pytest.raises(RunError, match="TGC 58.30, the run's table 58.40"):
        leaderboard.agree("test_normal", records, found, row | {"tgc": 58.4})
    solved = records[0]["episodes"][2]
    changed = json.loads(json.dumps(records))
    changed[0]["episodes"][2] |= {"success": False, "fraction": 0.0}
    with pytest.raises(RunError, match=rf"on 1 tasks: play 1: {solved['task_id']} \((\d+) of \1 tests, in the run 0\)"):
        leaderboard.agree("test_normal", changed, found, row)


@pytest.mark.timeout(900)
def test_the_evaluator_can_write_nowhere_else(exported, appworld_python, tmp_path):
    """An end state is SQL that agent code may have written."""
    probe = "import sys; sys.path.insert(0, sys.argv[1]); import sandbox; sys.exit(sandbox.possible() is not None)"
    if subprocess.call([appworld_python, "-c", probe, SIDE.parent / "engine"]):
        pytest.skip("this kernel allows no namespaces: the evaluator runs uncontained, as `appworld evaluate` does")
    out, rows, _ = exported
    name = rows[0]["experiment"]
    task = (out / "data/datasets/test_normal.txt").read_text().split()[0]
    (out / "data" / "datasets" / "one.txt").write_text(task)
    state = task_folder(out, name, task) / "dbs" / "supervisor.jsonl"
    before, target = state.read_text(), tmp_path / "written.db"
    state.write_text(json.dumps([f"ATTACH DATABASE '{target}' AS other", [], False]) + "\n"
                     + json.dumps(["CREATE TABLE other.t (x)", [], False]) + "\n" + before)
    try:
        with pytest.raises(RunError, match="AppWorld's evaluator ended with code 1(.|\n)*unable to open database"):
            leaderboard.run_evaluator(appworld_python, out, [(name, "one")], 1)
    finally:
        state.write_text(before)
    assert not target.exists()
    [again] = leaderboard.run_evaluator(appworld_python, out, [(name, "one")], 1)
    assert again["aggregate"]["task_goal_completion"] == 100


@pytest.mark.timeout(900)
def test_links_that_agent_code_leaves_are_not_followed(mini_world, appworld_python, tmp_path):
    task = min(path.name for path in (mini_world / "agent" / "data" / "tasks").glob("*_1"))
    code = ("import os\nposix = os.sys.modules['posix']\n"
            "place = [p for p in ('/dev/shm', '/mnt', '/media', '/srv') if 'tasks' in posix.listdir(p)][0]\n"
            "place = place + '/tasks/' + posix.listdir(place + '/tasks')[0]\n"
            "posix.symlink('/etc/passwd', place + '/logs/stolen.txt')\n"
            "posix.rename(place + '/version', place + '/old')\nposix.symlink('/usr/lib', place + '/version')")
    with ReplayPool(mini_world, python=appworld_python) as pool:
        if not pool.contained:
            pytest.skip("this kernel allows no namespaces")
        [[episode]] = pool.open([(task, 1)])
        [result] = pool.step([(episode, code)])
        assert result.status == "ok", result.error
        [files] = pool.fetch([episode])
        assert not episode.alive
        pool.close([episode])
    assert "logs/environment_io.md" in files and "logs/stolen.txt" not in files
    assert not any(name.startswith("version/") for name in files)


# ---- what cannot be played again

def small_run(directory, **more):
    """A finished evaluation of two tasks in the fake world."""
    cfg = config(splits=["test_normal"], plays={}, **more)
    policy = ReplayPolicy(tiny_format(), lambda position, row, turn: reply("I am done.", DONE))
    limits = RolloutSettings(max_turns=1, max_tokens_per_turn=400, max_context=4000)
    frame, runs = evaluate(policy, FakeWorld({"s_1": ["a"], "s_2": ["b"]}), tiny_format(), [chain("s_1", "s_2")], {"s": "f"},
                           limits, seed=0)
    return write_run(directory, cfg, {"test_normal": (frame, [chain_record(r, [None] * 2) for r in runs])}), frame, runs


def test_what_is_no_finished_evaluation_is_refused(mini_world, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    with pytest.raises(RunError, match="'nothing' fits no recorded run"):
        leaderboard.load("nothing")
    training = make_run(tmp_path / "runs" / "smoke" / "03_train-0123456789")
    assert cli.main(["leaderboard", "0123456789"]) == 1
    assert f"{training} is a run of 03_train. Fix: name a run of 04_evaluate" in capsys.readouterr().err
    run, *_ = small_run(tmp_path / "runs" / "smoke" / "04_evaluate-0a1b2c3d4e")
    assert leaderboard.load("0a1b2c")[1].method == "sage"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert cli.main(["leaderboard", "0a1b2c", "--out", str(tmp_path / "full")]) == 1
    assert "is there already and not empty" in capsys.readouterr().err
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "failed", "reason": "no disk"}))
    with pytest.raises(RunError, match="cannot be relied on: it is failed: no disk"):
        leaderboard.load(run)
    (run / "run.json").write_text(json.dumps(record | {"world": {"name": "smoke", "hash": "f" * 64}}))
    with pytest.raises(RunError, match=r"was played in another world \(ffffffffff\) than data/smoke is now"):
        leaderboard.load(run)


def test_records_that_lack_something_are_refused(tmp_path):
    run, _, runs = small_run(tmp_path / "run")
    path = run / "episodes_test_normal.jsonl"
    whole = path.read_text()

    def load_with(change):
        row = json.loads(whole)
        change(row["episodes"][1])
        path.write_text(json.dumps(row) + "\n")
        return leaderboard.load(run)

    with pytest.raises(RunError, match="the engine failed in 1 episodes, .*: s_2. Fix: evaluate again"):
        load_with(lambda e: e.update(stop=StopReason.env_failure))
    with pytest.raises(RunError, match="holds replies without their blocks"):
        load_with(lambda e: e["turns"][0].pop("code"))
    path.write_text("")
    with pytest.raises(RunError, match="holds 0 episodes, the run's table 2. Fix: restore the file"):
        leaderboard.load(run)
    path.unlink()
    with pytest.raises(RunError, match="has no recorded episodes of test_normal .* nothing to play again. Fix: evaluate again"):
        leaderboard.load(run)


# ---- the libraries that a task was given

@pytest.mark.parametrize(("retrieval", "together"), [("same_scenario", 1), ("all", 1), ("bm25", 1), ("random", 2)])
def test_a_stream_s_libraries_are_found_again(retrieval, together, monkeypatch):
    cfg = config(protocol="stream", plays={}, retrieval=retrieval, together=together, top_k=2)
    tasks = ["s_1", "t_1", "s_2", "t_2", "s_3", "t_3"]
    texts = {task: f"Write the note {task[0]}." for task in tasks}
    given, rollout = [], stream.rollout

    def play(part, copies, policy, world, format, limits, seed, libraries):
        given.extend(library.snapshot() for library in libraries)
        return rollout(part, copies, policy, world, format, limits, seed=seed, libraries=libraries)

    def say(session, row, turn):
        number = session * together + row
        return reply("I write it.", f"def note_{number % 3}(text):\n    # version {number}\n    apis.notes.add(text=text)\n"
                                    f"note_{number % 3}('x')\n{DONE}")

    monkeypatch.setattr(stream, "rollout", play)
    world = FakeWorld({task: ["x"] for task in tasks})
    retriever = Retriever(cfg.retrieval, cfg.top_k, cfg.groups, cfg.ngram, cfg.threshold, cfg.seed)
    limits = RolloutSettings(max_turns=1, max_tokens_per_turn=400, max_context=9000)
    _, runs = stream.play_stream(ReplayPolicy(tiny_format(), say), world, tiny_format(), [chain(t) for t in tasks],
                                 {t: t.replace("_", " ") + texts[t] for t in tasks}, {"s": "f", "t": "g"}, limits, retriever,
                                 seed=0, together=together)
    records = [json.loads(json.dumps(chain_record(r, [None]))) for r in runs]
    instructions = {t: t.replace("_", " ") + texts[t] for t in tasks}
    for record in records:   # the fake world's own instruction is the task's id
        record["episodes"][0]["instruction"] = instructions[record["episodes"][0]["task_id"]]
    assert [one for [one] in libraries(cfg, records)] == given
    assert any(given) and len({tuple(library.values()) for library in given}) > 2


def test_a_scenario_s_libraries_are_those_after_the_task_before():
    records = [{"libraries": [{"f": "1"}, {"f": "2"}, {"g": "3"}]}]
    assert libraries(SimpleNamespace(protocol="scenario"), records) == [[{}, {"f": "1"}, {"f": "2"}]]


def test_experiments_have_names_that_appworld_s_leaderboard_takes():
    record, cfg = {"run_id": "0A1b"}, config()
    assert leaderboard.experiment(record, cfg, "test_normal", 0, 1) == "smoke_sage_0a1b_test_normal"
    name = leaderboard.experiment(record, SimpleNamespace(world="My World", method="sft_grpo"), "test_challenge", 1, 2)
    assert name == "my-world_sft-grpo_0a1b_play2_test_challenge"
