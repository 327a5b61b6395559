"""Opening a task's world once and forking it into episodes; what runs inside an episode's process.

  template process   opens the AppWorld (no ground truth on its root), forks `copies` episodes, exits
  episode process    one agent's shell; executes code until its socket closes

Only the template's memory is copied, never a file: in-memory SQLite databases survive a fork, and each episode then
writes below its own directory. What runs after agent code uses names bound before it (it can patch modules).
"""

import ast
import contextlib
import gc
import json
import math
import os
import random
import socket
import sys
import time
import traceback
from dataclasses import dataclass

import sandbox
import speed
from appworld import AppWorld
from appworld.apps import get_all_apps
from appworld.apps.model_lib import CachedDBHandler, get_cached_db_engine, get_direct_cached_sqlite3_connection
from appworld.common.safety_guard import ALLOWED_MODULE_NAMES
from appworld.common.utils import get_name_to_apis, import_apis_module, import_models_module
from appworld.requester import _get_api_name_to_doc

FAILED = "Execution failed. Traceback:\n"  # the engine's prefix for every failed execute
PRIVATE_NAMES = ("requester", "Requester", "ApiCollection")  # through these agent code reaches the admin app
WARM_UP = """
passwords = {row["account_name"]: row["password"] for row in apis.supervisor.show_account_passwords()}
profile = apis.supervisor.show_profile()
for app in ("amazon", "phone", "file_system", "spotify", "venmo", "gmail", "splitwise", "simple_note", "todoist"):
    try:
        name = profile["phone_number"] if app == "phone" else profile["email"]
        token = apis[app].login(username=name, password=passwords[app])["access_token"]
    except Exception:
        continue
    for name in apis[app]:
        if name.startswith(("show_", "search_")):
            try:
                apis[app][name](access_token=token)
            except Exception:
                pass
apis.supervisor.complete_task()
"""  # first requests cost several times the later ones: imports, compiled SQL. Those that want more arguments just fail
_dumps, _loads, _send, _clock, _parse = json.dumps, json.loads, socket.socket.sendall, time.clock_gettime, ast.parse


@dataclass(frozen=True)
class Settings:
    """What every episode of this server shares."""

    scratch: str  # where episode directories live, as the server sees it
    contained: bool  # the sandbox is in force
    step_s: float
    memory_mb: int
    output_chars: int
    api_calls: int


def warm(directory: str) -> str:
    """Import everything and play one throw-away episode, so that a forked world opens fast. Returns its task id."""
    ALLOWED_MODULE_NAMES.discard("appworld")  # `from appworld.requester import Requester` reaches the admin app
    for app in get_all_apps():
        import_apis_module(app)
        import_models_module(app)
        get_name_to_apis(app, ignore_private_apis=True)
        _get_api_name_to_doc(app, include_private_apis=True)
    tasks = os.path.join(os.environ["APPWORLD_ROOT"], "data", "tasks")
    task_id = min(os.listdir(tasks))
    world = AppWorld(task_id=task_id, experiment_name=directory, load_ground_truth=False)
    world.execute(WARM_UP)
    world.task_completed()
    world.close()
    AppWorld.close_all()
    CachedDBHandler.reset()
    get_cached_db_engine.cache_clear()  # no SQLite handle of ours may cross a fork
    get_direct_cached_sqlite3_connection.cache_clear()
    del world
    speed.freeze_clock()
    speed.keep_shell()
    gc.collect()
    gc.freeze()  # shared pages stay shared
    _single_threaded()
    return task_id


def _single_threaded() -> None:
    """Wait until this process has one thread (the kernel lists a joined one a moment longer), at most a second."""
    for _ in range(200):
        if len(os.listdir("/proc/self/task")) == 1:
            return
        time.sleep(0.005)
    raise RuntimeError("the engine left a thread running; a fork would be unsafe")


def engine_timeout(step_s: float) -> int | None:
    """The engine's own time-out, in whole seconds below ours; None when there is no room for one."""
    return int(math.ceil(step_s) - 1) or None


def template(task_id: str, directory: str, episodes: list[tuple[str, socket.socket]], settings: Settings) -> None:
    """Open the task's world and fork one process for each (episode directory, socket); the caller exits afterwards.

    A single episode opens the world in its own process: forks, and the memory copied after them, are a large part of its cost.
    """
    alone = len(episodes) == 1
    if alone and not _fork_alone(episodes[0][1], settings):
        return
    world = AppWorld(
        task_id=task_id,
        experiment_name=directory,
        load_ground_truth=False,
        max_api_calls_per_interaction=settings.api_calls,
        timeout_seconds=engine_timeout(settings.step_s),
    )
    for name in PRIVATE_NAMES:
        world.shell.user_ns.pop(name, None)
    if alone:
        random.seed()  # as a fork does; the engine has just fixed the seed
        return _episode(world, *episodes[0], settings)
    gc.collect()
    gc.freeze()
    _single_threaded()
    for own, channel in episodes:
        middle = os.fork()  # unshare acts on the next fork: one process in between
        if middle == 0:
            try:
                if _fork_alone(channel, settings):
                    for _, other in episodes:
                        if other is not channel:
                            other.close()
                    _episode(world, own, channel, settings)
            finally:
                os._exit(0)
        os.waitpid(middle, 0)


def _fork_alone(channel: socket.socket, settings: Settings) -> bool:
    """Fork a child that is the first process of its own tree. True in it; False in the caller, which reports its id."""
    if settings.contained:
        sandbox.new_process_tree()
    pid = os.fork()
    if pid:
        _reply(channel, {"pid": pid})
    return pid == 0


def _episode(world: AppWorld, own: str, channel: socket.socket, settings: Settings) -> None:
    """Serve one episode until its socket closes; a failure is reported once, then the process ends."""
    try:
        os.setsid()
        if settings.contained:
            data = os.path.join(os.environ["APPWORLD_ROOT"], "data")
            sandbox.lock_episode(settings.scratch, own, data, world.task_id)
            own = settings.scratch
        _move(world, own)
        sandbox.limit(settings.memory_mb, file_mb=64)
        _reply(channel, {"ready": True})
        for number, line in enumerate(channel.makefile("rb")):
            if number == 0:
                sandbox.die_with_parent()  # only now has the template gone and the server adopted us
            _reply(channel, _execute(world, _loads(line)["code"], settings))
    except BaseException:
        _reply(channel, {"failed": traceback.format_exc()[-2000:]})


def _move(world: AppWorld, directory: str) -> None:
    """Point a forked world at its own output directory and save its start state there, as the engine does.

    The engine fixes these paths when it opens a world; every later write uses one of them.
    """
    task_directory = os.path.join(directory, "tasks", world.task_id)
    world.experiment_name = world.base_output_directory = directory
    world.output_directory = task_directory
    world.output_db_home_path_on_disk = os.path.join(task_directory, "dbs")
    for name in ("logs", "misc", "version", "checkpoints"):
        setattr(world, f"output_{name}_directory", os.path.join(task_directory, name))
        os.makedirs(os.path.join(task_directory, name))
    world.save_logs = lambda: None  # nobody reads them, and an argument that is no JSON would end the episode there
    world.output_checkpoints_directory = task_directory  # so that the public save_state writes where the judge looks
    world.save_state("dbs")


def _execute(world: AppWorld, code: str, settings: Settings) -> dict:
    """Run code as the engine does; the fields of a step's result. Raises when the engine itself no longer works."""
    began = _clock(time.CLOCK_MONOTONIC)
    try:
        output = world.execute(code)
    except BaseException as error:  # the engine lets KeyboardInterrupt and its like through, half-way
        # (not by name: the engine replaces builtins.SystemExit)
        unreadable = _unreadable(world, code) if isinstance(error, Exception) else f"{type(error).__name__}: {error}"
        if unreadable is None:
            raise
        world.safety_guard.disable()
        world.save_state("dbs")
        output = FAILED + unreadable
    seconds = _clock(time.CLOCK_MONOTONIC) - began
    status, error = "ok", None
    if output.startswith(FAILED):
        status, error = "error", last_line(output)
        if world.timeout_seconds and seconds > world.timeout_seconds - 0.1 and "timed out after" in error:
            status = "timeout"
    text, truncated = cut(printable(output), settings.output_chars)
    error = error and printable(error)
    return dict(output=text, error=error, status=status, truncated=truncated, done=bool(world.task_completed()))


def _unreadable(world: AppWorld, code: str) -> str | None:
    """What ails code on which Python's parser or the engine's check of it breaks before anything runs; None: nothing."""
    try:
        with contextlib.suppress(SyntaxError):  # these the engine reports itself
            _parse(code)
        world.safety_guard.is_syntax_safe(code)
    except Exception as error:
        return f"SyntaxError: the engine cannot read this code ({type(error).__name__}: {error})"


def printable(text: str) -> str:
    """Text that can be written as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def last_line(output: str) -> str:
    """The end of a failed execute's output that names the error; with the API's message when it is an HTTP error."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    if len(lines) > 2 and lines[1] == "Syntax error in line:":
        return f"SyntaxError: {lines[-1].removeprefix('Message: ')}"
    if len(lines) > 2 and lines[-1].startswith("{"):
        return " ".join(lines[-2:])[:500]
    return lines[-1][:500]


def cut(text: str, limit: int) -> tuple[str, bool]:
    """Text of at most about `limit` characters: head (2/3) and tail (1/3), and a line that says what is missing."""
    if len(text) <= limit:
        return text, False
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    return f"{text[:head]}\n... [{len(text) - limit} characters cut] ...\n{text[len(text) - tail :]}", True


def _reply(channel: socket.socket, message: dict) -> None:
    _send(channel, _dumps(message).encode() + b"\n")


def silence() -> None:
    """Standard input, output and error of the calling process go nowhere (agent code could fill the log)."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
