"""Every program of tests/hostile.py, run for real: it ends in time, with its status, and nothing outside is read or changed.

The world is a small copy with canaries: a secret outside, one in the judge's root, one in the home directory, one in the
environment, a listening socket of each kind. No output may hold a canary, no file may change, no judge be fooled.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import unavailable
from hostile import CALLS, FORBIDDEN, PLACES, TABLE, Program
from test_engine import gone, oracle

from sagelib import appworld
from sagelib.appworld import EnginePool, Limits, Outcome, StepResult

pytestmark = pytest.mark.engine
STEP_S = 2.0
LIMITS = Limits(step_s=STEP_S, api_calls=20)  # few enough that a busy machine makes them within the time limit
COPIES = 8
CANARY = "canary-9d1f4c"


@dataclass(frozen=True)
class Ran:
    """What a program came to."""

    result: StepResult
    outcome: Outcome
    alive: bool


@dataclass(frozen=True)
class Played:
    """All programs, and the world, the server and everything around it afterwards."""

    programs: dict[str, Ran]
    world: tuple[StepResult, Outcome, Outcome]
    left: dict
    ended: bool
    before: dict[str, object]
    after: dict[str, object]


@dataclass(frozen=True)
class Place:
    """The world, its task, and what lies around it."""

    root: Path
    world: Path
    task_id: str
    sockets: dict[str, socket.socket]
    words: dict[str, str]

    def fill(self, code: str) -> str:
        for name, word in self.words.items():
            code = code.replace(f"@{name}@", word)
        return code


def copy_world(source: Path, target: Path) -> str:
    """A world of three tasks (the first scenario with an answer to guess at), with a canary beside the ground truth."""
    chosen = min(p.parts[-3] for p in (source / "judge" / "data" / "tasks").glob("*_1/ground_truth/expert.json"))
    for part in ("agent", "judge"):
        for path in (source / part / "data").iterdir():
            if path.name != "tasks":
                (shutil.copytree if path.is_dir() else shutil.copy)(path, target / part / "data" / path.name, dirs_exist_ok=True)
        for number in "123":
            name = chosen[:-1] + number
            shutil.copytree(source / part / "data" / "tasks" / name, target / part / "data" / "tasks" / name)
    shutil.copy(source / "world.json", target / "world.json")
    return chosen


def listen(kind: int, address) -> socket.socket:
    """A socket that notices whoever gets through."""
    one = socket.socket(kind)
    one.bind(address)
    one.listen()
    one.setblocking(False)
    return one


def fingerprint(root: Path) -> dict[str, tuple]:
    """Every file under a directory: content, time, mode, links."""
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (data, info.st_mtime_ns, info.st_mode, info.st_nlink)
    return found


@pytest.fixture(scope="module")
def place(mini_world: Path, tmp_path_factory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("hostile")
    world = root / "data" / "copy"
    for folder in (root / "outside", root / "home", world, root / "data" / "sibling" / "judge"):
        folder.mkdir(parents=True)
    task_id = copy_world(mini_world, world)
    secrets = [root / "outside" / "secret.txt", root / "home" / "canary.txt", world / "judge" / "canary.txt"]
    for path in [*secrets, root / "data" / "sibling" / "judge" / "canary.txt"]:
        path.write_text(CANARY)
    sockets = {
        "inet": listen(socket.AF_INET, ("127.0.0.1", 0)),
        "unix": listen(socket.AF_UNIX, str(root / "outside" / "s.sock")),
        "abstract": listen(socket.AF_UNIX, f"\0sagelib-canary-{os.getpid()}"),
    }
    truth = world / "judge" / "data" / "tasks" / task_id / "ground_truth"
    words = dict(
        secret=str(secrets[0]), answer=str(truth / "answer.json"), judge=str(world / "judge"), task_id=task_id,
        sibling=str(root / "data" / "sibling"), home=str(root / "home"), repository=str(appworld.REPOSITORY),
        client=str(os.getpid()), outside=str(root / "outside"), port=str(sockets["inet"].getsockname()[1]),
        agent=str(world / "agent"), task=str(world / "agent" / "data" / "tasks" / task_id),
        answer_text=json.loads((truth / "expert.json").read_text())["value"],
    )
    yield Place(root, world, task_id, sockets, words)
    for one in sockets.values():
        one.close()


@pytest.fixture(scope="module")
def played(place: Place, appworld_python: Path) -> Iterator[Played]:
    """All programs, each in a copy of its own, eight at a time; afterwards the world is as it was."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(place.root / "home"))
    patch.setenv("CANARY_ENV", CANARY)
    before = outside(place)
    found: dict[str, Ran] = {}
    with EnginePool(place.world, python=appworld_python, limits=LIMITS) as pool:
        if not pool.contained:
            unavailable(f"no sandbox on this machine: {pool.stats()['uncontained_reason']}")
        for start in range(0, len(TABLE), COPIES):
            found |= play(pool, place, TABLE[start : start + COPIES])
        left = settled(pool)
        world = solved_and_idle(pool, place)
        pids = [left["server_pid"], *pool.stats()["episode_pids"]]
    yield Played(found, world, left, gone(pids), before, outside(place))
    patch.undo()


def settled(pool: EnginePool) -> dict:
    """The server's figures once the killed processes have gone, or after three seconds."""
    deadline = time.monotonic() + 3
    while pool.stats()["processes"] > 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    return pool.stats()


def outside(place: Place) -> dict[str, object]:
    """What no program may change: every file of the world and around it, the engine's code, System V memory, odd places."""
    return {
        "files": fingerprint(place.root),
        "engine": fingerprint(EnginePool.SERVER.parent),
        "memory": system_v(),
        "evil": [path for path in ("/tmp/sagelib-evil", "/dev/shm/sagelib-evil", "/usr/evil") if Path(path).exists()],
    }


def system_v() -> list[str]:
    """Keys of the machine's System V shared memory, which outlives its makers."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line.split()[0] for line in lines]


def play(pool: EnginePool, place: Place, programs: list[Program]) -> dict[str, Ran]:
    """One program per copy of the task, then a look at what they left: no fault of ours, each judged."""
    [episodes] = pool.open([(place.task_id, len(programs))])
    assert all(episode.alive for episode in episodes), episodes[0].failure
    results = pool.step([(e, place.fill(p.code)) for e, p in zip(episodes, programs, strict=True)])
    outcomes = pool.judge(episodes)
    rows = zip(programs, results, outcomes, episodes, strict=True)
    ended = {p.name: Ran(result, outcome, episode.alive) for p, result, outcome, episode in rows}
    pool.close(episodes)
    return ended


def solved_and_idle(pool: EnginePool, place: Place) -> tuple[StepResult, Outcome, Outcome]:
    """A fresh episode played by the reference solution, and one in which nothing is done."""
    [[solver, idler]] = pool.open([(place.task_id, 2)])
    [result] = pool.step([(solver, oracle(place.world, place.task_id))])
    verdicts = pool.judge([solver, idler])
    pool.close([solver, idler])
    return result, *verdicts


@pytest.mark.parametrize("program", TABLE, ids=lambda program: program.name)
def test_a_hostile_program(program: Program, played: Played, place: Place) -> None:
    one = played.programs[program.name]
    result, said = one.result, one.result.output + (one.result.error or "")
    assert result.status in program.status.split("|"), result
    assert any(text in said for text in place.fill(program.says).split("|")), result
    assert result.seconds < STEP_S + 1
    assert one.alive == (result.status in ("ok", "error")) or result.status == "timeout"
    assert (one.outcome.status, one.outcome.success) == ("judged", False), one.outcome
    assert CANARY not in said and "uid=" not in said
    assert len(said.encode()) < 6000  # encodable too


def test_the_world_still_works_afterwards(played: Played) -> None:
    result, solved, idle = played.world
    assert (result.status, result.error, result.done) == ("ok", None, True)
    assert (solved.success, solved.passed, solved.status) == (True, solved.total, "judged")
    assert (idle.success, idle.status) == (False, "judged")


@pytest.mark.parametrize("what", ["files", "engine", "memory", "evil"])
def test_nothing_outside_was_changed(played: Played, what: str) -> None:
    assert played.after[what] == played.before[what]


def test_nothing_is_left_running_or_stored(played: Played) -> None:
    assert (played.left["episodes"], played.left["processes"], played.left["episode_pids"]) == (0, 3, [])
    assert played.left["scratch_mb"] < 1 and played.ended


def test_nobody_got_through_a_socket(played: Played, place: Place) -> None:
    assert set(place.sockets) == {"inet", "unix", "abstract"}
    for one in place.sockets.values():
        with pytest.raises(BlockingIOError):
            one.accept()


GUARD_AND_QUICK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from appworld.common.safety_guard import SafetyGuard
import speed
engine, slow, asked = SafetyGuard(), SafetyGuard.is_syntax_safe, []
SafetyGuard.is_syntax_safe = lambda self, code: asked.append(code) or (False, "")
speed._check_syntax_quickly()
seen = []
for code in json.load(sys.stdin):
    try:
        refused = not slow(engine, code)[0]
    except Exception:
        refused = None  # the engine's check breaks on it
    asked.clear()
    engine.is_syntax_safe(code)
    seen.append([code, refused, not asked])
sys.__stdout__.write(json.dumps(seen))
"""


def forbidden_calls() -> list[str]:
    """Two forbidden functions at every place in the syntax; every way to call forbidden functions of each kind."""
    codes = []
    for path in FORBIDDEN:
        parent, name = path.rsplit(".", 1)
        module = parent.split(".")[0]
        for how, call in zip(CALLS, (path, path.replace(module, "q", 1), name, "g"), strict=True):
            if "PARENT" in how and "." in parent:  # a method cannot be imported, its class can
                how = how.replace("PARENT import NAME", f"{module} import {parent.split('.')[1]}")
                call = f"g.{name}" if " as g" in how else path.split(".", 1)[1]
            head = how.replace("MODULE", module).replace("PARENT", parent).replace("NAME", name)
            places = PLACES if how == CALLS[0] and path in FORBIDDEN[:2] else PLACES[:3]
            codes += [head + place.replace("@", f"{call}()").replace("DECORATOR", "@") for place in places]
    return codes


def test_the_quick_check_lets_nothing_through_that_the_engine_refuses(appworld_python: Path, tmp_path: Path) -> None:
    env = os.environ | {"APPWORLD_ROOT": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    command = [str(appworld_python), "-c", GUARD_AND_QUICK, str(EnginePool.SERVER.parent)]
    done = subprocess.run(
        command, input=json.dumps(forbidden_calls()), env=env, capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert sum(refused is True for _, refused, _ in seen) > 150
    assert [code for code, refused, quick in seen if refused and quick] == []


def test_the_table_is_large_and_names_are_unique() -> None:
    assert len(TABLE) == len({program.name for program in TABLE}) > 200
