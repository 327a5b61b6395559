"""The README's examples run as they stand there, and its commands and files exist."""
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import pytest
import torch
from fakes import ReplayPolicy, tiny_format
from run_maker import make_run
from test_generator import ENGINE

from sagelib import cli
from sagelib.credit import CREDIT
from sagelib.prompts import reply
from sagelib.retrieval import METHODS
from sagelib.rollout import RolloutSettings, rollout
from sagelib.runs import ROOT
from sagelib.sft import encode_pair, fine_tune
from sagelib.types import Chain, StopReason

README = (ROOT / "README.md").read_text()


def block(heading: str) -> str:
    """The first Python block under a heading."""
    section = re.split(r"(?m)^#+ ", README.split(f"\n### {heading}\n", 1)[1])[0]
    return re.search(r"(?s)```python\n(.*?)```", section)[1]


def run(heading: str) -> dict:
    """The names that the block leaves."""
    names: dict = {"__name__": "readme"}
    exec(compile(block(heading), f"README.md, {heading}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def registries():
    """What an example registers is gone after its test."""
    known = [(CREDIT, dict(CREDIT)), (METHODS, dict(METHODS))]
    yield
    for table, before in known:
        table.clear()
        table.update(before)


@pytest.mark.parametrize("heading", ["A scenario", "A reward", "A retriever", "A world", "A model"])
def test_an_example_is_short(heading):
    assert 5 <= len(block(heading).splitlines()) <= 20


BUILD = """
import json, os, sys
from pathlib import Path
from scenario import Truth, load_families
import drafts
from build import Builder
root = Path(os.environ["APPWORLD_ROOT"])
truth, builder = Truth(root / "data" / "base_dbs"), Builder(root)
found = {}
for i, family in enumerate(f for f in load_families() if f.verb.name == "longest"):
    person, value = drafts.pool(family, truth, 7, 0)[0]
    draft = drafts.make(family, truth, person, value, 7)
    rows = family.filter.keep(truth.rows("phone", family.source, person), value)
    refused = builder.build(f"{0xabc0000 + i:07x}_1", draft, "stamp")
    found[family.name] = [refused, draft.answer == max(row["snooze_minutes"] for row in rows), draft.instruction]
print("RESULT" + json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.engine
def test_the_scenario_makes_tasks_that_pass_the_gates(appworld_python, mini_world, tmp_path):
    code, root = tmp_path / "engine", tmp_path / "root"
    shutil.copytree(ENGINE, code, ignore=shutil.ignore_patterns("__pycache__"))
    with open(code / "scenarios" / "phone.py", "a") as file:
        file.write(block("A scenario"))
    (root / "data" / "tasks").mkdir(parents=True)
    for part in ("base_dbs", "api_docs"):
        (root / "data" / part).symlink_to(mini_world.resolve() / "judge" / "data" / part)
    env = os.environ | {"APPWORLD_ROOT": str(root), "APPWORLD_CACHE": str(root / "cache"), "PYTHONPATH": str(code)}
    done = subprocess.run([appworld_python, "-c", BUILD], env=env, cwd=root, capture_output=True, text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stderr[-2000:]
    found = json.loads(lines[0].removeprefix("RESULT"))
    assert set(found) == {"phone.longest.alarms.labelled.direct", "phone.longest.active_alarms.labelled.note"}
    for refused, right, instruction in found.values():
        assert refused is None and right and instruction.startswith("What is the longest snooze in minutes of all ")


def test_the_reward_gives_the_returns_that_it_says():
    names = run("A reward")
    assert names["returns"] == [[1.0, 1.5], [1.0, 1.0], [1.0, 0.5]]
    assert names["advantages"] == [0.5, 0.0, -0.5]
    assert CREDIT["half"]([None, 1.0], [False, False], [set(), set()]) == [None, 1.0]


def test_the_retriever_shows_a_function_with_what_it_calls():
    names = run("A retriever")
    assert list(names["shown"]) == ["login", "like_song"]
    assert METHODS["by_name"](None, names["store"], names["Query"]("c_1", "c", "Archive it.")) == []


@pytest.mark.parametrize("heading, file, after, setting, call", [
    ("A reward", "credit.py", 'credit: Literal["skill_integrated", ', '"half", ',
     "TrainConfig.from_parameters('smoke', method='sage', credit='half').credit"),
    ("A retriever", "retrieval.py", 'retrieval: Literal["same_scenario", ', '"by_name", ',
     "EvalConfig.from_parameters('smoke', method='sage', protocol='stream', retrieval='by_name').retrieval"),
])
def test_the_two_places_that_the_readme_names_make_it_a_parameter(tmp_path, heading, file, after, setting, call):
    library = tmp_path / "sagelib"
    shutil.copytree(ROOT / "sagelib", library, ignore=shutil.ignore_patterns("__pycache__", "engine"))
    config, module = (library / "config.py").read_text(), library / file
    assert config.count(after) == 1
    (library / "config.py").write_text(config.replace(after, after + setting))
    own = re.sub(rf"(?m)^from sagelib\.{module.stem} import.*$", "", block(heading))   # it is that file now
    module.write_text(module.read_text() + own)
    code = f"from sagelib import {module.stem}\nfrom sagelib.config import EvalConfig, TrainConfig\nprint({call})"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True)
    assert done.stdout.split() == [setting.strip('", ')], done.stderr[-2000:]


def test_the_world_is_played_by_the_rollout_with_a_skill_library():
    names = run("A world")
    script = [reply("I write a skill.", "def add(a, b):\n    return a + b\nx = add(1, 2)"), reply("I call it.", "x = add(4, 4)")]
    agent = ReplayPolicy(tiny_format(), lambda position, row, turn: script[position])
    settings = RolloutSettings(max_context=4000)
    [play] = rollout([Chain("sums", ("1+2", "4+5"))], 1, agent, names["Sums"](), tiny_format(), settings, seed=0)
    first, second = play.episodes
    assert (first.success, first.fraction, first.stop) == (True, 1.0, StopReason.completed)
    assert first.skills_made == ("add",) and second.skills_called == ("add",)
    assert (second.success, second.fraction, second.failures) == (False, 0.0, ("x is another number",))


def test_the_model_is_sampled_with_its_own_log_probabilities(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("A model")
    sample, prompt = names["sample"], names["prompt"]
    assert 1 <= len(sample.ids) <= 8 and type(names["model"]).__name__ == "LlamaForCausalLM"
    with torch.no_grad():
        logits_TV = names["model"](torch.tensor([prompt + sample.ids])).logits[0, len(prompt) - 1:-1].float()
    expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
    assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    example = encode_pair(names["format"], {"text": "Set x to 1+2.", "code": "x = 3"})
    losses: list[float] = []
    fine_tune(names["model"], names["tokenizer"], [example] * 40, output_dir=tmp_path / "sft", batch=4, learning_rate=1e-2,
              seed=0, bf16=False, log=lambda step, loss, **_: losses.append(loss))
    assert len(losses) == 10 and losses[-1] < losses[0] - 1


def test_what_is_shown_inside_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    code = re.search(r"(?s)\n## Look inside a run\n.*?```python\n(.*?)```", README)[1]
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", lambda **_: SimpleNamespace(update=shown.append))   # needs a kernel
    names = {"run_dir": make_run(tmp_path / "03_train-a")}
    exec(compile(code, "README.md, Look inside a run", "exec"), names)
    assert len(shown) == 1 and {skill.name for skill in names["skills"]} == {skill.name for skill in names["kept"]} == {"add"}
    assert list(names["library"].snapshot()) == ["add"] and (tmp_path / "my_skills" / "index.json").exists()


# ---- the rest of the README

def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    section = re.split(r"(?m)^## ", README.split(f"\n## {heading}\n", 1)[1])[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_requirements_are_stated_for_every_profile_that_runs():
    reproduce = next(a for a in cli.parser()._actions if a.dest == "command").choices["reproduce"]
    offered = next(a for a in reproduce._actions if a.dest == "profile").choices
    rows = {row[0]: row[1:] for row in table("Requirements")}
    assert set(rows) == set(offered) and all(len(row) == 6 and all(row) for row in rows.values())


def test_commands_of_the_readme_are_understood():
    lines = re.findall(r"(?m)^    (\./workbench .+?)(?:  +#.*)?$", README)
    lines += re.findall(r"`(\./workbench [^`]+)`", README)
    words = [re.sub(r"[\[\]]", "", line).replace("--profile P", "--profile smoke").split()[1:] for line in lines]
    assert len(words) > 10
    for word in words:
        assert cli.parse(word).command == word[0]


def test_files_of_the_readme_exist():
    names = set(re.findall(r"`((?:sagelib|tests|figures|benchmarks|notebooks)/[\w./*]+)`", README))
    names |= set(re.findall(r"\]\(([\w./]+)\)", README))
    assert len(names) > 15
    assert [name for name in sorted(names) if not list(ROOT.glob(name))] == []


def test_every_notebook_is_in_the_readme():
    numbers = {path.stem[:2] for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {number for number in numbers if f"`{number}" in README} == numbers
