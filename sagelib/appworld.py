"""Client of the AppWorld engine: parallel episodes, each in its own process, judged by another one.

Standard library only.

    with EnginePool(Path("data/mini")) as pool:
        [group] = pool.open([("5a6e001_1", 8)])                    # one world opened, forked into 8 episodes
        results = pool.step([(episode, "print(apis.supervisor.show_profile())") for episode in group])
        outcomes = pool.judge(group)
        pool.close(group)

What a status means:
  ok            the code ran clean
  error         it raised, or the engine refused it; the episode goes on
  timeout       over the time limit. The engine's own time-out (a whole second below `step_s`, none when step_s <= 1)
                stops ordinary loops and leaves the episode usable (`episode.alive`). Code that swallows it is killed
                from outside within step_s + 1 s and its process is gone. The clock is wall time and runs only while
                the step runs, never while it is queued.
  died          the episode's process is gone: agent code ended or broke it (os.abort, sabotaged modules), or it was
                killed before
  env_failure   our fault (a fork failed, the scratch is full, the server ended); never to be scored as the agent's
A dead episode can still be judged: from the state after its last finished step.
"""

import contextlib
import difflib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

REPOSITORY = Path(__file__).resolve().parent.parent
SETUP = "./workbench setup"
START_SECONDS = 300.0  # a start takes 3 s; on a machine that is starved of cores it took over 120
JUDGE_SECONDS = 25.0  # a state that takes the judge 20 s is given up by itself; this is for a judge that hangs
JUDGE_TRIES = 3

Status = Literal["ok", "error", "timeout", "died", "env_failure"]


class EngineMissing(RuntimeError):
    """The AppWorld environment cannot be used; the message names the command that builds it."""


class WorldMissing(FileNotFoundError):
    """The world's directory is missing or incomplete; the message names the command that builds it."""


class UnknownTask(KeyError):
    """No such task in this world; the message names the nearest ids."""

    def __str__(self) -> str:
        return str(self.args[0])


class EngineDied(RuntimeError):
    """The engine server has ended; the message names its log."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one episode, enforced from outside its process."""

    step_s: float = 10.0
    """Wall seconds of one execute, counted only while it runs."""
    memory_mb: int = 1024
    """Address space of the episode's process, the engine's own share (about 300 MB) included."""
    output_chars: int = 4000
    """Characters of output that the agent sees; the middle of a longer one is cut out."""
    api_calls: int = 200
    """API calls in one execute."""


@dataclass(frozen=True)
class StepResult:
    """What one execute gave."""

    output: str
    error: str | None
    """The line of the traceback that names the exception; None when the code ran clean."""
    done: bool
    """complete_task was called, in this step or an earlier one."""
    status: Status
    truncated: bool
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The judge's verdict on an end state."""

    passed: int
    total: int
    success: bool
    failures: tuple[str, ...]
    status: Literal["judged", "env_failure"]

    @property
    def fraction(self) -> float:
        """Share of the task's tests that pass, 0 when there are none."""
        return self.passed / self.total if self.total else 0.0


@dataclass(frozen=True)
class TaskInfo:
    """What an agent may know of a task."""

    task_id: str
    scenario_id: str
    instruction: str
    supervisor: dict[str, str]
    datetime: str
    world: str


@dataclass(eq=False)
class Episode:
    """One attempt at one task, in its own process."""

    task: TaskInfo
    id: int
    alive: bool = True
    """The process takes further steps."""
    failure: str = ""
    """Why this episode is an environment failure; empty when it is not one."""


@dataclass(eq=False)
class _Channel:
    """JSON lines over a socket; requests and replies are matched by id, sending and receiving overlap."""

    socket: socket.socket
    name: str
    log: Path
    inbox: bytes = b""
    outbox: bytes = b""
    last_id: int = 0
    replies: dict[int, dict] = field(default_factory=dict)

    def exchange(self, requests: list[dict], silence: float | None = None) -> list[dict]:
        """The reply to each request, in order. EngineDied when the other side has gone, TimeoutError after a `silence`."""
        ids = []
        for request in requests:
            self.last_id += 1
            ids.append(self.last_id)
            self.outbox += json.dumps({"id": self.last_id, **request}).encode() + b"\n"
        self.replies = {}  # what an interrupted exchange left behind is nobody's
        while not all(number in self.replies for number in ids):
            if not self.pump(silence):
                raise TimeoutError(f"the {self.name} has said nothing for {silence:.0f} s; its log: {self.log}")
        return [self.replies[number] for number in ids]

    def pump(self, timeout: float | None) -> bool:
        """Send and receive what can be now; False when nothing happened for `timeout` seconds."""
        readable, writable, _ = select.select([self.socket], [self.socket] if self.outbox else [], [], timeout)
        try:
            if writable:
                self.outbox = self.outbox[self.socket.send(self.outbox[: 1 << 16]) :]
            if readable:
                chunk = self.socket.recv(1 << 20)
                if not chunk:
                    raise ConnectionResetError
                *lines, self.inbox = (self.inbox + chunk).split(b"\n")
                for line in lines:
                    reply = json.loads(line)
                    self.replies[reply["id"]] = reply
        except ConnectionError:
            raise EngineDied(f"the {self.name} has ended; its log: {self.log}") from None
        return bool(readable or writable)


class EnginePool:
    """Starts the engine server for one world; a context manager. At its end no process is left.

    `python` is the AppWorld environment's interpreter (default: $SAGELIB_APPWORLD_PYTHON, else the repository's
    .venvs/appworld/bin/python). `parallel` steps run at once (default: the CPUs this process may use).
    `sandbox=False` is for debugging only.
    Not thread-safe. Raises EngineMissing or WorldMissing.
    """

    SERVER: ClassVar[Path] = Path(__file__).resolve().parent / "engine" / "server.py"   # what its process runs

    def __init__(
        self,
        world_dir: Path,
        python: Path | None = None,
        parallel: int | None = None,
        limits: Limits = Limits(),
        sandbox: bool = True,
    ) -> None:
        self.world_dir = Path(world_dir).resolve()
        self.agent_root, judge_root = self.world_dir / "agent", self.world_dir / "judge"
        for root in (self.agent_root, judge_root):
            if not (root / "data" / "tasks").is_dir():
                raise WorldMissing(
                    f"no world in {self.world_dir}: {root / 'data' / 'tasks'} is missing. Build it with: {SETUP}"
                )
        python = Path(
            python or os.environ.get("SAGELIB_APPWORLD_PYTHON") or REPOSITORY / ".venvs" / "appworld" / "bin" / "python"
        )
        if not python.exists():
            raise EngineMissing(f"no AppWorld environment: {python} is missing. Build it with: {SETUP}")
        self.limits = limits
        self.parallel = parallel or len(os.sched_getaffinity(0))
        self._tasks: dict[str, TaskInfo] = {}
        self._episodes: dict[int, Episode] = {}
        self._last_episode = 0
        self._start(python, judge_root, sandbox)

    def _start(self, python: Path, judge_root: Path, sandbox: bool) -> None:
        descriptor, name = tempfile.mkstemp(prefix="sagelib-engine-", suffix=".log")
        self.log = Path(name)
        (control, control_theirs), (judge, judge_theirs) = socket.socketpair(), socket.socketpair()
        config = dict(
            control_fd=control_theirs.fileno(),
            judge_fd=judge_theirs.fileno(),
            judge_root=str(judge_root),
            hide=self._private(python, judge_root),
            limits=asdict(self.limits),
            parallel=self.parallel,
            scratch_mb=1024,
            sandbox=sandbox,
        )
        environment = dict(
            PATH=os.environ.get("PATH", ""),
            HOME=os.environ.get("HOME", "/"),
            LANG="C.UTF-8",
            APPWORLD_ROOT=str(self.agent_root),
            PYTHONWARNINGS="ignore",
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONHASHSEED="0",
            MALLOC_ARENA_MAX="1",
        )  # nothing else: agents can read their environment
        try:
            self._process = subprocess.Popen(
                [str(python), str(self.SERVER), json.dumps(config)],
                env=environment,
                cwd="/",
                pass_fds=(config["control_fd"], config["judge_fd"]),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            for one in (control_theirs, judge_theirs):
                one.close()
            os.close(descriptor)
        self._control = _Channel(control, "engine server", self.log)
        self._guard, self._judge, self._lost_judge, self.judge_restarts = judge, None, "", 0
        try:
            while 0 not in self._control.replies:
                if not self._control.pump(START_SECONDS):
                    raise EngineDied(f"the engine server did not start within {START_SECONDS:.0f} s")
            self.contained = bool(self._control.replies[0]["contained"])
            self._scratch = self._control.replies[0]["scratch"]
        except EngineDied:
            self._stop()
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
            raise EngineMissing(
                f"the engine server did not start with {python}. If its environment is incomplete, build it with: "
                f"{SETUP}\nIts log, {self.log}, ends:\n{tail}"
            ) from None
        if not self.contained:
            print(self.log.read_text(errors="replace").strip(), file=sys.stderr)

    def _private(self, python: Path, judge_root: Path) -> list[str]:
        """Directories to hide from agents: judge roots, runs, notebooks, tests, home; none that the engine needs."""
        needed = [
            python.resolve(),
            Path(os.path.abspath(python)),
            Path(os.path.abspath(python)).parent.parent.resolve(),
            self.SERVER,
            self.agent_root,
        ]
        wanted = [
            *self.world_dir.parent.glob("*/judge"),
            judge_root,
            REPOSITORY / "runs",
            REPOSITORY / "notebooks",
            REPOSITORY / "tests",
            Path.home(),
        ]
        wanted = dict.fromkeys(path.resolve() for path in wanted)
        return [str(path) for path in wanted if not any(one.is_relative_to(path) for one in needed)]

    # ------------------------------------------------------------------ episodes
    def open(self, requests: list[tuple[str, int]]) -> list[list[Episode]]:
        """One list of `copies` episodes for each (task id, copies); each task's world is opened once and forked.

        A group that cannot be opened through a fault of ours comes back too: each of its episodes is an env_failure.
        Raises UnknownTask before anything is opened.
        """
        groups = []
        for task_id, copies in requests:
            task = self.task(task_id)
            groups.append([Episode(task, self._last_episode + 1 + k) for k in range(copies)])
            self._last_episode += copies
        wanted = [group for group in groups if group]
        replies = self._control.exchange(
            [dict(op="open", task_id=group[0].task.task_id, episodes=[one.id for one in group]) for group in wanted]
        )
        for group, reply in zip(wanted, replies, strict=True):
            for episode in group:
                self._episodes[episode.id] = episode
                if not reply["ok"]:
                    episode.alive, episode.failure = False, reply["reason"]
        return groups

    def task(self, task_id: str) -> TaskInfo:
        """The task's instruction, supervisor, date and world. Raises UnknownTask."""
        if task_id not in self._tasks:
            tasks = self.agent_root / "data" / "tasks"
            if "/" in task_id or not (tasks / task_id / "specs.json").is_file():
                near = difflib.get_close_matches(task_id, os.listdir(tasks), n=3, cutoff=0.0)
                raise UnknownTask(
                    f"no task {task_id!r} in {self.world_dir}; "
                    f"nearest: {', '.join(near) or 'none, the world has no tasks'}"
                )
            specs = json.loads((tasks / task_id / "specs.json").read_text())
            marker = self.world_dir / "world.json"
            world = json.loads(marker.read_text())["world"] if marker.is_file() else self.world_dir.name
            self._tasks[task_id] = TaskInfo(
                task_id, task_id.split("_")[0], specs["instruction"], specs["supervisor"], specs["datetime"], world
            )
        return self._tasks[task_id]

    def step(self, requests: list[tuple[Episode, str]]) -> list[StepResult]:
        """Run each (episode, code) in the episode's shell, at most `parallel` at once; results in the requests' order.

        Several requests for one episode in one call are a ValueError (their order would be undefined).
        """
        if len({episode.id for episode, _ in requests}) < len(requests):
            raise ValueError("step: an episode occurs twice in one call")
        sent = [(episode, code) for episode, code in requests if episode.alive]
        messages = [dict(op="step", episode=episode.id, code=code) for episode, code in sent]
        replies = dict(zip([episode.id for episode, _ in sent], self._answers(messages, sent), strict=True))
        return [self._result(episode, replies.get(episode.id)) for episode, _ in requests]

    def _answers(self, messages: list[dict], sent: list[tuple[Episode, str]]) -> list[dict]:
        try:
            return self._control.exchange(messages)
        except EngineDied as error:
            return [
                dict(
                    output="",
                    error=str(error),
                    done=False,
                    status="env_failure",
                    truncated=False,
                    seconds=0.0,
                    alive=False,
                )
            ] * len(sent)

    @staticmethod
    def _result(episode: Episode, reply: dict | None) -> StepResult:
        if reply is None:
            status, error = (
                ("env_failure", episode.failure) if episode.failure else ("died", "the episode's process is gone")
            )
            return StepResult("", error, False, status, False, 0.0)
        episode.alive = reply["alive"]
        if reply["status"] == "env_failure":
            episode.failure = reply["error"]
        return StepResult(**{one.name: reply[one.name] for one in fields(StepResult)})

    def judge(self, episodes: list[Episode]) -> list[Outcome]:
        """Verdicts on the saved end states, by a process that never ran agent code; an env_failure is not judged.

        A judge that dies or hangs is started again and asked again; `judge_restarts` counts that."""
        wanted = [episode for episode in episodes if not episode.failure]
        jobs = [(episode.task.task_id, f"{self._scratch}/episode{episode.id}") for episode in wanted]
        verdicts: dict[int, Any] = {}
        reason = ""
        if jobs:
            try:
                outcomes = self._ask_judge(jobs)
                verdicts = {episode.id: outcome for episode, outcome in zip(wanted, outcomes, strict=True)}
            except EngineDied as error:
                reason = str(error)
        return [self._outcome(episode, verdicts.get(episode.id), reason) for episode in episodes]

    def _ask_judge(self, jobs: list[tuple[str, str]]) -> list[dict]:
        """The outcomes. EngineDied when there is no judge any more, or JUDGE_TRIES judges were lost over these states."""
        for _ in range(JUDGE_TRIES):
            if self._judge is None:
                self._meet_judge()
            try:
                [reply] = self._judge.exchange([dict(jobs=jobs)], JUDGE_SECONDS * (len(jobs) + 1))
                return reply["outcomes"]
            except (EngineDied, TimeoutError) as error:
                self._judge.socket.close()
                self._judge, self._lost_judge = None, str(error)
                if isinstance(error, TimeoutError):
                    with contextlib.suppress(OSError):  # then the guard has gone, which is noticed when it sends no socket
                        self._guard.send(b"k")
        raise EngineDied(f"{JUDGE_TRIES} judges in a row were lost over these states; their log: {self.log}")

    def _meet_judge(self) -> None:
        """Talk to the judge that the guard has started. EngineDied when the guard has gone or sends no socket to it."""
        found: list[int] = []
        if select.select([self._guard], [], [], START_SECONDS)[0]:
            with contextlib.suppress(ConnectionError):
                _, found, _, _ = socket.recv_fds(self._guard, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not found:
            raise EngineDied(f"the judge has ended and is not started again; its log: {self.log}")
        self._judge = _Channel(socket.socket(fileno=found[0]), "judge", self.log)
        if self._lost_judge:
            self.judge_restarts += 1
            print(f"{self._lost_judge}. It was started again ({self.judge_restarts} so far).", file=sys.stderr)
            self._lost_judge = ""

    @staticmethod
    def _outcome(episode: Episode, verdict: dict | None, reason: str) -> Outcome:
        if verdict is None:
            return Outcome(0, 0, False, (episode.failure or reason,), "env_failure")
        return Outcome(**{**verdict, "failures": tuple(verdict["failures"])})

    # ------------------------------------------------------------------ endings
    def close(self, episodes: list[Episode]) -> None:
        """The episodes' processes and saved states are gone. Closing twice is allowed."""
        for episode in episodes:
            episode.alive = False
        open_ones = [episode.id for episode in episodes if self._episodes.pop(episode.id, None)]
        if open_ones:
            with contextlib.suppress(EngineDied):  # then they are gone already
                self._control.exchange([dict(op="close", episodes=open_ones)])

    def close_all(self) -> None:
        """Close every open episode."""
        self.close(list(self._episodes.values()))

    def stats(self) -> dict:
        """Figures of this moment.

        processes (server, judge and its guard included), pss_mb (server and episodes), episodes, queued, episode_pids (in the
        episodes' order), server_pid, scratch_mb, judge_restarts, contained (the sandbox is in force) and, where not,
        uncontained_reason."""
        [reply] = self._control.exchange([dict(op="stats")])
        return {name: value for name, value in reply.items() if name != "id"} | {"judge_restarts": self.judge_restarts}

    def _stop(self) -> None:
        for one in (self._control.socket, self._guard, *([self._judge.socket] if self._judge else [])):
            one.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # everything below it dies with it
            self._process.wait()

    def __enter__(self) -> "EnginePool":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size == 0:  # an empty log is of no use to anybody
                self.log.unlink()
