"""The real engine: tasks are solvable and judged, hostile code is held, nothing is left behind.

Each attack is written to pass the engine's own syntax guard (modules through os.sys.modules), to meet our walls.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import unavailable

from sagelib.appworld import EngineMissing, EnginePool, Episode, Limits, StepResult, UnknownTask, WorldMissing

STEP_S = 2.5
POSIX = "import os\nposix = os.sys.modules['posix']\n"


@pytest.fixture(scope="module")
def pool(mini_world: Path, appworld_python: Path) -> Iterator[EnginePool]:
    with EnginePool(mini_world, python=appworld_python, limits=Limits(step_s=STEP_S)) as pool:
        yield pool


@pytest.fixture(scope="module")
def task_id(mini_world: Path) -> str:
    return min(path.name for path in (mini_world / "agent" / "data" / "tasks").glob("*_1"))


@pytest.fixture
def group(pool: EnginePool, task_id: str) -> Iterator[Callable[[int], list[Episode]]]:
    """Opens copies of the first task; closes all of them at the end of the test."""
    yield lambda copies: pool.open([(task_id, copies)])[0]
    pool.close_all()


def run(pool: EnginePool, episode: Episode, code: str) -> StepResult:
    [result] = pool.step([(episode, code)])
    return result


def oracle(world: Path, task_id: str) -> str:
    """The reference solution as one block of code."""
    expert = json.loads((world / "judge" / "data" / "tasks" / task_id / "ground_truth" / "expert.json").read_text())
    parts = [helper["source"] for helper in expert["helpers"]] + [expert["main"]["source"], expert["main"]["call"]]
    if "complete_task" not in "".join(parts):
        answer = "" if expert["answer"] is None else f"answer={expert['answer']!r}"
        parts.append(f"apis.supervisor.complete_task({answer})")
    return "\n".join(parts)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def gone(pids: list[int], seconds: float = 3.0) -> bool:
    """No process of `pids` is left, within some seconds."""
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


# ---------------------------------------------------------------------- what it is for
def test_the_oracle_passes_and_doing_nothing_fails(pool: EnginePool, mini_world: Path, task_id: str, group) -> None:
    solver, idler = group(2)
    result = run(pool, solver, oracle(mini_world, task_id))
    assert (result.status, result.error, result.done) == ("ok", None, True)
    solved, idle = pool.judge([solver, idler])
    assert (solved.success, solved.passed, solved.fraction, solved.failures) == (True, solved.total, 1.0, ())
    assert (idle.success, idle.status) == (False, "judged") and idle.passed < idle.total == solved.total


def test_copies_start_equal_and_do_not_see_each_other(pool: EnginePool, group) -> None:
    first, second = group(2)
    assert run(pool, first, "mark = 17\nprint(mark)\napis.supervisor.complete_task()").done
    other = run(pool, second, "print('mark' in globals(), apis.supervisor.show_active_task()['instruction'])")
    assert (other.output.strip(), other.done) == (f"False {second.task.instruction}", False)
    assert run(pool, first, "print(mark + 1)").output.strip() == "18"


def test_task_information_is_the_agents_own(pool: EnginePool, group) -> None:
    [episode] = group(1)
    profile = json.loads(run(pool, episode, "print(apis.supervisor.show_profile())").output)
    assert profile["email"] == episode.task.supervisor["email"]
    assert episode.task.scenario_id == episode.task.task_id.split("_")[0]


def test_errors_are_named_and_do_not_end_the_episode(pool: EnginePool, group) -> None:
    [episode] = group(1)
    assert run(pool, episode, "{}['a']").error == "KeyError: 'a'"
    assert run(pool, episode, "def f(:\n").error == "SyntaxError: invalid syntax"
    assert run(pool, episode, "apis.spotify.show_song_library()").error.startswith(
        "Exception: Response status code is 401: {"
    )
    assert run(pool, episode, "raise KeyboardInterrupt").error.startswith("KeyboardInterrupt")
    assert run(pool, episode, "for i in range(300): apis.supervisor.show_profile()").error.startswith(
        "Exception: Number of requests exceeded the limit of 200"
    )
    assert run(pool, episode, "print(2)") == StepResult("2\n", None, False, "ok", False, pytest.approx(0, abs=STEP_S))


# ---------------------------------------------------------------------- time, memory, output
@pytest.mark.parametrize(
    ("code", "usable"),
    [
        ("while True: pass", True),  # the engine's own time-out suffices
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass\n", None),
        ("while True:\n    try:\n        apis.supervisor.show_profile()\n    except BaseException: pass\n", None),
        ("import itertools\nmax(itertools.count())", False),  # a loop in C: only a kill from outside
    ],
    ids=["loop", "swallows", "swallows-api", "c-loop"],
)
def test_endless_code_is_stopped_within_its_limit(pool: EnginePool, group, code: str, usable: bool | None) -> None:
    looping, neighbour = group(2)
    began = time.monotonic()
    result = run(pool, looping, code)
    assert time.monotonic() - began < STEP_S + 1
    assert result.status == "timeout"
    assert usable is None or looping.alive == usable
    assert run(pool, looping, "print(1)").status == ("ok" if looping.alive else "died")
    assert run(pool, neighbour, "print(1)").status == "ok"
    assert pool.judge([looping])[0].status == "judged"


def test_memory_is_bounded(pool: EnginePool, group) -> None:
    [episode] = group(1)
    assert run(pool, episode, "x = bytearray(8*10**9)").error == "MemoryError"
    result = run(pool, episode, "x = []\nwhile True: x.append(bytearray(10**7))")
    assert result.status in ("error", "died", "timeout")


def test_output_is_cut_in_the_middle(pool: EnginePool, group) -> None:
    [episode] = group(1)
    result = run(pool, episode, "print('a' * 50_000 + 'z' * 50_000)")
    assert result.truncated and len(result.output) < 4100
    assert result.output.startswith("aaa") and result.output.endswith("zzz\n")
    assert "[96001 characters cut]" in result.output  # 100,001 with the line's end, less 4,000


# ---------------------------------------------------------------------- crashes
@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.abort()",
        "import os\nos.execv('/bin/true', ['true'])",
        "import json\njson.dumps = None",
        POSIX + "for fd in range(3, 40):\n    try: posix.write(fd, b'{}\\n')\n    except OSError: pass",
        POSIX + "posix._exit(0)",
    ],
    ids=["abort", "exec", "sabotage", "forged-reply", "exit"],
)
def test_a_crash_is_the_agents_and_only_its_own(pool: EnginePool, group, code: str) -> None:
    crashing, neighbour = group(2)
    result = run(pool, crashing, code)
    assert (result.status, result.done, crashing.alive) == ("died", False, False)
    assert run(pool, neighbour, "print(1)").output == "1\n"
    outcome = pool.judge([crashing])[0]
    assert (outcome.status, outcome.success) == ("judged", False) and outcome.total > 0


def test_a_killed_judge_is_started_again_and_the_verdicts_stay(
    mini_world: Path, appworld_python: Path, task_id: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    with EnginePool(mini_world, python=appworld_python, limits=Limits(step_s=60)) as pool:
        solver, idler = pool.open([(task_id, 2)])[0]
        assert run(pool, solver, oracle(mini_world, task_id)).status == "ok"
        verdicts = pool.judge([solver, idler])
        assert [v.success for v in verdicts] == [True, False] and pool.judge_restarts == 0
        stats = pool.stats()
        guard, first = [pid for pid in children(stats["server_pid"]) if pid not in stats["episode_pids"]]
        os.kill(first, signal.SIGKILL)
        assert pool.judge([solver, idler]) == verdicts and pool.stats()["judge_restarts"] == 1
        [second] = children(guard)
        os.kill(second, signal.SIGSTOP)
        monkeypatch.setattr("sagelib.appworld.JUDGE_SECONDS", 3.0)
        assert pool.judge([idler, solver]) == verdicts[::-1] and pool.judge_restarts >= 2
        assert capsys.readouterr().err.count("was started again") == pool.judge_restarts
        [third] = children(guard)
        assert gone([first, second]) and pool.stats()["processes"] == 5   # server, guard, judge, two episodes
        os.kill(guard, signal.SIGKILL)
        assert gone([guard, third])
        restarts = pool.judge_restarts
        assert [outcome.status for outcome in pool.judge([solver])] == ["env_failure"]   # of a guard there is one only
        assert pool.judge_restarts == restarts
        assert run(pool, solver, "print(1)").output == "1\n"


# ---------------------------------------------------------------------- containment
def contained(pool: EnginePool) -> None:
    if not pool.contained:
        unavailable(f"no sandbox on this machine: {pool.stats()['uncontained_reason']}")


def test_ground_truth_cannot_be_read(pool: EnginePool, group, mini_world: Path) -> None:
    contained(pool)
    [episode] = group(1)
    judge = mini_world.resolve() / "judge"
    answer = judge / "data" / "tasks" / episode.task.task_id / "ground_truth" / "answer.json"
    assert answer.is_file()
    assert (
        "FileNotFoundError"
        in run(pool, episode, f"from pathlib import Path\nprint(Path({str(answer)!r}).read_text())").error
    )
    assert "FileNotFoundError" in run(pool, episode, f"import os\nprint(list(os.scandir({str(judge)!r})))").error
    data = str(mini_world.resolve() / "agent" / "data")
    listing = POSIX + "print(posix.listdir({0!r}))"
    assert json.loads(run(pool, episode, listing.format(data)).output) == ["tasks"]
    assert json.loads(run(pool, episode, listing.format(f"{data}/tasks")).output) == [episode.task.task_id]
    load = "import os\nprint(os.sys.modules['appworld.task'].Task.load('{0}').ground_truth.answer)"
    assert "ground_truth directory" in run(pool, episode, load.format(episode.task.task_id)).error
    assert "not allowed" in run(pool, episode, "from appworld.task import Task").error
    uncover = "import os\nc = os.sys.modules['ctypes'].CDLL(None)\n"
    uncover += "print(c.umount2({0!r}, 2), c.mount(b'none', b'/proc', b'proc', 0, None))"
    assert run(pool, episode, uncover.format(os.fsencode(judge))).output == "-1 -1\n"


def test_other_processes_network_and_files_are_out_of_reach(pool: EnginePool, group) -> None:
    contained(pool)
    episode, _ = group(2)
    assert run(pool, episode, POSIX + "print(posix.getpid(), list(os.scandir('/proc')))").output == "1 []\n"
    assert "No such process" in run(pool, episode, POSIX + "posix.kill(-1, 9)").error
    connect = "import os\ns = os.sys.modules['socket'].socket()\n"
    connect += "print(s.connect_ex(('127.0.0.1', 22)), s.connect_ex(('1.1.1.1', 53)))"
    assert run(pool, episode, connect).output == "101 101\n"  # ENETUNREACH, loopback too
    assert "Read-only file system" in run(pool, episode, "import os\nos.makedirs('/tmp/evil')").error
    assert not Path("/tmp/evil").exists()


def test_a_single_episode_is_as_alone_as_one_of_a_group(pool: EnginePool, group) -> None:
    contained(pool)
    [episode] = group(1)
    assert run(pool, episode, POSIX + "print(posix.getpid(), list(os.scandir('/proc')))").output == "1 []\n"
    assert "No such process" in run(pool, episode, POSIX + "posix.kill(-1, 9)").error
    assert "not permitted" in run(pool, episode, POSIX + "posix.fork()").error


def test_copies_and_single_episodes_draw_their_own_random_numbers(pool: EnginePool, group) -> None:
    code = "import random\nprint(random.random())"
    episodes = [*group(2), *group(1), *group(1)]
    assert len({run(pool, episode, code).output for episode in episodes}) == 4


def test_private_apis_are_not_in_the_shell(pool: EnginePool, group) -> None:
    [episode] = group(1)
    names = "print([n for n in ('requester', 'Requester', 'ApiCollection', 'world', 'AppWorld') if n in globals()])"
    assert run(pool, episode, names).output == "[]\n"
    assert "not allowed" in run(pool, episode, "from appworld.requester import Requester").error


# ---------------------------------------------------------------------- nothing is left behind
STRAY = POSIX + "t = os.sys.modules['_thread']\nt.start_new_thread(os.sys.modules['select'].select, ([], [], [], 1000))\n"


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return found + [one for child in found for one in children(child)]


def test_close_ends_the_episodes_and_their_strays(pool: EnginePool, group) -> None:
    contained(pool)
    before = set(children(pool.stats()["server_pid"]))
    episodes = group(2)
    assert run(pool, episodes[0], STRAY).status == "ok"
    ours = set(children(pool.stats()["server_pid"])) - before
    assert len(ours) == 2 and sum(len(os.listdir(f"/proc/{pid}/task")) for pid in ours) == 3
    pool.close(episodes)
    assert gone(sorted(ours))
    assert pool.stats()["episodes"] == 0
    assert run(pool, episodes[1], "print(1)").status == "died"
    pool.close(episodes)


CLIENT = """
import sys, time
from pathlib import Path
from sagelib.appworld import EnginePool, Limits
pool = EnginePool(Path(sys.argv[1]), python=Path(sys.argv[2]), limits=Limits(step_s=30))
[episodes] = pool.open([(sys.argv[3], 2)])
print(pool.stats()["server_pid"], flush=True)
pool.step([(episodes[0], "import itertools\\nmax(itertools.count())")])
"""


def test_no_process_survives_a_killed_client(mini_world: Path, appworld_python: Path, task_id: str) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(mini_world), str(appworld_python), task_id],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parent.parent,
        text=True,
    )
    server = int(client.stdout.readline())
    time.sleep(0.5)
    pids = [server, *children(server)]
    assert len(pids) == 5  # server, the judge's guard, judge, two episodes
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    assert gone(pids)


# ---------------------------------------------------------------------- the caller's mistakes
def test_the_callers_mistakes_are_named(
    pool: EnginePool, group, mini_world: Path, task_id: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownTask, match=task_id):
        pool.open([(task_id[:-1] + "9", 1)])
    with pytest.raises(WorldMissing, match="workbench setup"):
        EnginePool(tmp_path)
    with pytest.raises(EngineMissing, match="workbench setup"):
        EnginePool(mini_world, python=tmp_path / "python")
    [episode] = group(1)
    with pytest.raises(ValueError, match="twice"):
        pool.step([(episode, "1"), (episode, "2")])
