"""The engine's client against a small fake server: protocol, order, statuses. Needs no AppWorld."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sagelib import appworld
from sagelib.appworld import (
    EngineDied,
    EngineMissing,
    EnginePool,
    Episode,
    Limits,
    Outcome,
    StepResult,
    TaskInfo,
    UnknownTask,
    WorldMissing,
)

FAKE = """
import json, os, socket, sys, threading
config = json.loads(sys.argv[1])
control, guard = socket.socket(fileno=config["control_fd"]), socket.socket(fileno=config["judge_fd"])
deaths = max(0, 100 - config["limits"]["memory_mb"])                           # so many judges are lost over their first request
def send(channel, message): channel.sendall(json.dumps(message).encode() + b"\\n")
def judging():
    for number in range(99):
        judge, theirs = socket.socketpair()
        socket.send_fds(guard, [b"j"], [theirs.fileno()])
        theirs.close()
        serve(judge, number < deaths)
        judge.close()
def serve(judge, lost):
    for line in judge.makefile("rb"):
        if lost and config["limits"]["output_chars"] == 1: return guard.recv(1)  # hangs until it is given up
        if lost: return judge.sendall(b'{"id": ')                                # dies in the middle of its answer
        request = json.loads(line)
        outcomes = [dict(passed=int(directory.rsplit("episode", 1)[1]), total=4, success=False, failures=[task],
                         status="judged") for task, directory in request["jobs"]]
        send(judge, dict(id=request["id"], outcomes=outcomes))
threading.Thread(target=judging, daemon=True).start()
if config["limits"]["api_calls"] == 1: sys.exit("no module named appworld")
send(control, dict(id=0, scratch="/scratch", contained=True, reason=None, pid=os.getpid(), guard_pid=0))
steps = []
for line in control.makefile("rb"):
    request = json.loads(line)
    if request["op"] == "open":
        send(control, dict(id=request["id"], ok=request["task_id"] != "bbbbbbb_1", reason="no room"))
    elif request["op"] == "step" and request["code"] == "end": os._exit(1)
    elif request["op"] == "step":
        code = request["code"]
        status = {"late": "timeout", "crash": "died"}.get(code, "ok")
        ok = status == "ok"
        steps.append(dict(id=request["id"], output=f"{request['episode']}:{code}", error=None if ok else code,
                          done=code == "done", status=status, truncated=False, seconds=0.5, alive=ok))
        if len(steps) == 3 or code != "first":
            [send(control, steps.pop()) for _ in list(steps)]                  # the last one first
    elif request["op"] == "stats":
        send(control, dict(id=request["id"], config=config, environment=dict(os.environ), contained=True))
    else: send(control, dict(id=request["id"]))
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A world directory with two tasks, as far as the client reads it."""
    for root in ("agent", "judge"):
        for task_id in ("aaaaaaa_1", "bbbbbbb_1"):
            directory = tmp_path / "toy" / root / "data" / "tasks" / task_id
            directory.mkdir(parents=True)
            (directory / "specs.json").write_text(
                json.dumps(
                    dict(
                        instruction=f"Do {task_id}.", supervisor=dict(first_name="Ann"), datetime="2023-05-18T12:00:00"
                    )
                )
            )
    (tmp_path / "toy" / "world.json").write_text('{"world": "toyland"}')
    return tmp_path / "toy"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(EnginePool, "SERVER", tmp_path / "fake.py")


@pytest.fixture
def pool(world: Path, fake: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnginePool]:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    with EnginePool(world, python=Path(sys.executable), parallel=3, limits=Limits(step_s=4.5)) as pool:
        yield pool


def test_open_numbers_the_copies_and_reads_the_task(pool: EnginePool) -> None:
    first, second = pool.open([("aaaaaaa_1", 2), ("aaaaaaa_1", 1)])
    assert [episode.id for episode in first + second] == [1, 2, 3]
    assert first[0].task == TaskInfo(
        "aaaaaaa_1", "aaaaaaa", "Do aaaaaaa_1.", {"first_name": "Ann"}, "2023-05-18T12:00:00", "toyland"
    )
    assert pool.open([("aaaaaaa_1", 0)]) == [[]]


def test_results_keep_the_order_of_the_requests(pool: EnginePool) -> None:
    [episodes] = pool.open([("aaaaaaa_1", 3)])
    results = pool.step([(episode, "first") for episode in reversed(episodes)])
    assert [result.output for result in results] == ["3:first", "2:first", "1:first"]
    assert results[0] == StepResult("3:first", None, False, "ok", False, 0.5)
    assert pool.step([(episodes[1], "done")])[0].done


def test_large_messages_in_both_directions_do_not_block(pool: EnginePool) -> None:
    [episodes] = pool.open([("aaaaaaa_1", 8)])
    code = "#" * 1_000_000
    assert [len(result.output) for result in pool.step([(episode, code) for episode in episodes])] == [1_000_002] * 8


def test_a_dead_episode_stays_dead_without_asking(pool: EnginePool) -> None:
    [[late, crashed]] = pool.open([("aaaaaaa_1", 2)])
    assert [result.status for result in pool.step([(late, "late")]) + pool.step([(crashed, "crash")])] == [
        "timeout",
        "died",
    ]
    assert [result.status for result in pool.step([(late, "x"), (crashed, "x")])] == ["died", "died"]
    assert pool.judge([crashed, late]) == [
        Outcome(2, 4, False, ("aaaaaaa_1",), "judged"),
        Outcome(1, 4, False, ("aaaaaaa_1",), "judged"),
    ]
    assert pool.judge([late])[0].fraction == 0.25


def test_a_group_that_cannot_open_is_our_fault(pool: EnginePool) -> None:
    [broken], [fine] = pool.open([("bbbbbbb_1", 1), ("aaaaaaa_1", 1)])
    first, second = pool.step([(broken, "x"), (fine, "x")])
    assert (first.status, first.error, second.status) == ("env_failure", "no room", "ok")
    assert pool.judge([broken, fine]) == [
        Outcome(0, 0, False, ("no room",), "env_failure"),
        Outcome(2, 4, False, ("aaaaaaa_1",), "judged"),
    ]
    assert pool.judge([broken])[0].fraction == 0.0


def test_the_servers_end_is_our_fault(pool: EnginePool) -> None:
    [episodes] = pool.open([("aaaaaaa_1", 2)])
    results = pool.step([(episode, "end") for episode in episodes])
    assert [result.status for result in results] == ["env_failure"] * 2
    assert str(pool.log) in results[0].error
    assert pool.step([(episodes[0], "x")])[0].status == "env_failure"
    assert [outcome.status for outcome in pool.judge(episodes)] == ["env_failure"] * 2
    with pytest.raises(EngineDied, match="its log"):
        pool.open([("aaaaaaa_1", 1)])


@pytest.mark.parametrize("deaths, status", [(2, "judged"), (3, "env_failure")])
def test_a_lost_judge_is_started_again_and_counted(world, fake, capsys, deaths, status) -> None:
    with EnginePool(world, python=Path(sys.executable), limits=Limits(memory_mb=100 - deaths)) as pool:
        [episodes] = pool.open([("aaaaaaa_1", 2)])
        assert [outcome.status for outcome in pool.judge(episodes)] == [status] * 2
        assert pool.judge(episodes)[0] == Outcome(1, 4, False, ("aaaaaaa_1",), "judged")   # the next one is there
        assert pool.judge_restarts == pool.stats()["judge_restarts"] == deaths
        assert capsys.readouterr().err.count("It was started again") == deaths


def test_a_judge_that_hangs_is_replaced(world, fake, monkeypatch, capsys) -> None:
    monkeypatch.setattr(appworld, "JUDGE_SECONDS", 1.0)
    with EnginePool(world, python=Path(sys.executable), limits=Limits(memory_mb=99, output_chars=1)) as pool:
        [episodes] = pool.open([("aaaaaaa_1", 1)])
        assert pool.judge(episodes)[0].status == "judged" and pool.judge_restarts == 1
        assert "the judge has said nothing for 2 s" in capsys.readouterr().err


def test_the_caller_is_told_what_is_wrong(pool: EnginePool, world: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownTask, match="no task 'aaaaaaa_7'.*nearest: aaaaaaa_1"):
        pool.open([("aaaaaaa_1", 1), ("aaaaaaa_7", 1)])
    with pytest.raises(WorldMissing, match="workbench setup"):
        EnginePool(tmp_path, python=Path(sys.executable))
    with pytest.raises(EngineMissing, match="workbench setup"):
        EnginePool(world, python=tmp_path / "none")
    [episode] = pool.open([("aaaaaaa_1", 1)])[0]
    with pytest.raises(ValueError, match="twice"):
        pool.step([(episode, "a"), (episode, "b")])


def test_a_server_that_cannot_start_shows_its_log(world: Path, fake: None) -> None:
    with pytest.raises(EngineMissing, match="(?s)workbench setup.*no module named appworld"):
        EnginePool(world, python=Path(sys.executable), limits=Limits(api_calls=1))


def test_what_the_server_is_given(pool: EnginePool, world: Path) -> None:
    stats = pool.stats()
    assert stats["config"]["limits"] == dict(step_s=4.5, memory_mb=1024, output_chars=4000, api_calls=200)
    assert stats["config"]["parallel"] == 3
    assert str(world.resolve() / "judge") in stats["config"]["hide"]
    assert stats["environment"]["APPWORLD_ROOT"] == str(world.resolve() / "agent")
    assert "SECRET_TOKEN" not in stats["environment"]


def test_it_starts_where_the_output_streams_are_no_files(world, fake, monkeypatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())   # as in a notebook's kernel: fileno() raises
    with EnginePool(world, python=Path(sys.executable)) as pool:
        [[episode]] = pool.open([("aaaaaaa_1", 1)])
        assert pool.step([(episode, "x")])[0].output == "1:x"


def test_closing_twice_is_allowed(pool: EnginePool) -> None:
    [episodes] = pool.open([("aaaaaaa_1", 2)])
    pool.close(episodes[:1])
    pool.close_all()
    pool.close(episodes)
    assert pool.step([(episodes[0], "x")])[0].status == "died"
    assert isinstance(episodes[0], Episode) and not episodes[1].alive
