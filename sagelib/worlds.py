"""The worlds in data/: AppWorld's, generated and verified, and the tasks of text worlds. Standard library only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from sagelib import building, java
from sagelib.building import (
    Problem,
    clean_env,
    digest,
    environment_python,
    last_line,
    need_disk,
    need_unused,
    pyproject,
    run_logged,
    say,
    stamped,
    write_stamp,
)
from sagelib.environments import appworld_env, build_engine
from sagelib.profiles import WORLDS
from sagelib.rise_worlds import KINDS, kind_of
from sagelib.run_ids import code_hash, sources


def engine() -> Path:
    """Directory of the code that AppWorld's interpreter runs."""
    return building.ROOT / "sagelib" / "engine"


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
    place, generator, stamp = building.ROOT / "data" / name, generator_stamp(name), world_stamp(name)
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
    log = building.VENVS / f"world-{name}.log"
    say(f"world {name}", "people, accounts and content of the apps")
    run_logged(f"world {name}", [python, engine() / "world.py", *common, "--profile", WORLDS[name]["profile"]], log,
               appworld_env(), show=True)
    say(f"world {name}", "tasks, each with its checks")
    jobs = ["--plan", plan, "--jobs", os.cpu_count() or 1]
    run_logged(f"world {name}", [python, engine() / "generate.py", *common, *jobs], log, appworld_env(), show=True)
    write_stamp(place, stamp)
    say(f"world {name}", "ready")


def build_text_world(name: str) -> None:
    """The environment and the tasks of a text world are there."""
    kind = KINDS[kind_of(name)]
    if kind.java and (why := java.missing(kind.java)):
        raise Problem(f"{name} cannot be set up: {why}")
    if kind.own_environment:
        build_engine(kind.environment)
    say(f"world {name}", "its tasks")
    code = f"from sagelib import rise_worlds; w = rise_worlds.find({name!r}); print(w.directory()); print(w.about)"
    log, env = building.VENVS / f"world-{name}.log", clean_env(PYTHONPATH=str(building.ROOT))
    run_logged(f"world {name}", [environment_python("main"), "-c", code], log, env, show=True)
    say(f"world {name}", "ready: " + last_line(log))
