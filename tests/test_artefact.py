"""Skills as an artefact: counts and provenance from the record, a folder and back, and a policy that starts with it."""
import json

import matplotlib
import pytest
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format
from run_maker import ADD, SETTINGS, make_run

from sagelib import artefact, cards, cli, harvest
from sagelib.harvest import Skill
from sagelib.prompts import reply
from sagelib.rollout import rollout
from sagelib.runs import RunError

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "smoke" / "03_train-0123456789", tokenizer=False)


@pytest.fixture(scope="module")
def skills(run):
    return harvest.collect(run)


def skill(name, source=None, **counts):
    return Skill(name, source or f"def {name}():\n    return 1", **counts)


# ---- from a run

def test_counts_and_provenance(skills):
    first, second = skills
    assert (first.key, first.made, first.made_solved, first.used, first.used_solved) == ("add", 4, 4, 2, 2)
    assert (first.run_id, first.task_id, first.step, first.tasks_used) == ("0123456789", "s_1", 1, ("s_2",))
    assert (second.key, second.task_id, second.made, second.used) == ("add_v2", "s_2", 2, 0)
    assert "return text" in second.source and first.source == ADD.strip()


def test_versions_are_syntax_trees_without_comments_and_docstrings():
    plain = harvest.normal_form("def f(x):\n    return x")
    assert harvest.normal_form('def f(x):  # why\n    """What."""\n    return (x)') == plain
    assert harvest.normal_form("def f(x):\n    return x + 1") != plain
    assert harvest.normal_form('def f():\n    """Only words."""') == harvest.normal_form("def f():\n    pass")


def test_duplicates_are_found_under_other_names_recursion_included():
    a = skill("a", "def a(n):\n    return n and a(n - 1)")
    b = skill("b", 'def b(n):\n    """Counts."""\n    return n and b(n - 1)')
    other = skill("c", "def c(n):\n    return n and a(n - 1)")
    assert harvest.duplicates([a, b, other]) == [["a", "b"]]


def test_pruning_keeps_what_the_kept_ones_call():
    top = skill("top", "def top():\n    return middle()", used=2)
    middle, low = skill("middle", "def middle():\n    return low()"), skill("low")
    rest = skill("rest", "def rest():\n    return low()", made=5)
    kept, pruned = harvest.prune([top, middle, low, rest])
    assert {s.name for s in kept} == {"top", "middle", "low"} and [s.name for s in pruned] == ["rest"]
    assert harvest.prune([top, rest], used=3) == ([], [top, rest])


def test_versions_are_numbered_anew_after_pruning(skills):
    kept, pruned = harvest.prune(skills)
    assert [s.key for s in kept] == ["add"] and [s.key for s in pruned] == ["add_v2"]


def test_a_helper_that_only_skills_call_is_not_listed_as_unused():
    group = [skill("top", "def top():\n    return low()", used=2), skill("side", "def side():\n    return low()", used=1),
             skill("low"), skill("low", "def low():\n    return 2", version=2)]
    rows = {row["skill"]: (row["used"], row["called by skills"]) for row in harvest.describe(group)}
    assert rows == {"top": (2, 0), "side": (1, 0), "low": (0, 2), "low_v2": (0, 0)}


def test_the_calling_line_is_of_the_first_clean_call_and_empty_for_a_mention(skills):
    assert [s.called_as for s in skills] == ["add('b')", ""]
    turns = [{"code": "add(1)", "error": "TypeError"},
             {"code": "x = 1\f\r\nfor y in (1, 2):\r\n    x = add(\r\n y)", "error": None}]
    episode = {"turns": turns, "skills_shown": ["add", "other"]}
    assert harvest.calling_line(episode, "add") == "x = add(" and harvest.calling_line(episode, "other") == ""


# ---- the graph

def test_dependencies_and_depths_also_of_a_circle():
    group = [skill("a", "def a():\n    return b() + c()"), skill("b", "def b():\n    return c()"), skill("c"),
             skill("x", "def x():\n    return y()"), skill("y", "def y():\n    return x()")]
    calls = harvest.dependencies(group)
    assert calls == {"a": ["b", "c"], "b": ["c"], "c": [], "x": ["y"], "y": ["x"]}
    depths = artefact.depths(calls)
    assert (depths["a"], depths["b"], depths["c"]) == (2, 1, 0)
    figure = artefact.draw(group)
    texts = [t.get_text() for t in figure.axes[0].texts if t.get_text()]
    assert sorted(texts) == ["a (0)", "b (0)", "c (0)", "x (0)", "y (0)"]
    assert figure.axes[0].get_title().startswith("5 skills, 5 calls")
    with pytest.raises(RunError, match="no skill to draw"):
        artefact.draw([])


# ---- folder and back

def test_a_folder_comes_back_as_it_was(skills, tmp_path):
    folder = artefact.export(skills, tmp_path / "skills")
    assert sorted(p.name for p in folder.iterdir()) == ["add.py", "add_v2.py", "index.json"]
    assert artefact.read(folder) == list(skills)
    assert artefact.load(folder).snapshot() == {"add": ADD.strip()}
    entry = json.loads((folder / "index.json").read_text())["skills"][0]
    assert (entry["run_id"], entry["used_solved"], entry["calls"]) == ("0123456789", 2, [])


def test_callees_stand_before_callers(tmp_path):
    group = [skill("a", "def a():\n    return b()"), skill("b", "import re\ndef b():\n    return c()"), skill("c")]
    assert list(artefact.load(artefact.export(group, tmp_path / "x")).snapshot()) == ["c", "b", "a"]


def test_a_frozen_policy_starts_with_an_exported_library(skills, tmp_path):
    library = artefact.load(artefact.export(skills, tmp_path / "skills"))
    policy = ReplayPolicy(tiny_format(), lambda *_: reply("I know that.", "add('z')\napis.supervisor.complete_task()"))
    [played] = rollout([chain("t_1")], 1, policy, FakeWorld({"t_1": ["z"]}), tiny_format(), SETTINGS, seed=0, libraries=[library])
    assert played.episodes[0].success and played.episodes[0].skills_called == ("add",)
    assert played.episodes[0].skills_shown == ("add",)


def test_wrong_folders_say_what_is_wrong(skills, tmp_path):
    folder = artefact.export(skills, tmp_path / "skills")
    with pytest.raises(RunError, match="not empty"):
        artefact.export(skills, folder)
    with pytest.raises(RunError, match="no index.json of format 1"):
        artefact.load(tmp_path)
    with pytest.raises(RunError, match="no skill to export"):
        artefact.export([], tmp_path / "none")
    (folder / "add.py").write_text("def add(text):\n    return 2\n")
    with pytest.raises(RunError, match="add.py was changed after the export"):
        artefact.load(folder)
    assert artefact.load(folder, edited=True).snapshot() == {"add": "def add(text):\n    return 2"}
    (folder / "add.py").write_text("def other():\n    return 2\n")
    with pytest.raises(RunError, match=r"must hold the function 'add' .* it holds \['other'\]"):
        artefact.load(folder, edited=True)
    (folder / "add.py").unlink()
    with pytest.raises(RunError, match="is named in index.json and is not there"):
        artefact.load(folder)


def test_the_command_lists_and_exports(run, tmp_path, capsys):
    assert cli.main(["skills", str(run), "--out", str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "1 skills kept, 1 pruned" in text and "solved when used" in text
    assert "# add: written in task s_1, called in s_2\n# called as: add('b')\ndef add(text):\n" in text
    head, row = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[:2])
    assert head[:3] == ["skill", "used", "called by skills"] and row[:3] == ["add", "2", "0"]
    assert "\nused: tasks whose own code calls it; called by skills: skills of this table that call it" in text
    assert cli.printable("x = '\x1b[2J'\n\ty") == "x = '\ufffd[2J'\n\ty"
    assert list(artefact.load(tmp_path / "s").snapshot()) == ["add"]


# ---- cards

def test_cards_hold_the_record_and_say_what_they_do_not_know(run):
    text = cards.model_card(run)
    assert text.startswith("# Policy 0123456789 (sage)\n") and "| credit | skill_integrated |" in text
    assert "| world hash | abc |" in text and "| code | commit c0ffee with uncommitted changes |" in text
    assert "Not evaluated" in text and "| solved_last5 | 66.7 |" in text
    evaluation = run.parent / "04_evaluate-e"
    evaluation.mkdir(exist_ok=True)
    record = json.loads((run / "run.json").read_text()) | {
        "run_id": "e", "notebook": "04_evaluate", "inputs": [{"run_id": "0123456789", "notebook": "03_train"}]}
    (evaluation / "run.json").write_text(json.dumps(record))
    (evaluation / "results.json").write_text(json.dumps({"table": [{"split": "dev", "method": "sage", "seed": 3, "tgc": 50.0}]}))
    text = cards.model_card(run)
    assert "| dev | sage | 3 | 50 | unknown | unknown |" in text and "Not evaluated" not in text
    data = cards.dataset_card(run)
    assert f"| episodes.jsonl | 6 | {(run / 'episodes.jsonl').stat().st_size} | not recorded |" in data
    with pytest.raises(RunError, match="is a run of 04_evaluate"):
        cards.model_card(evaluation)


def test_an_unfinished_run_says_so_first_and_markup_is_plain_text(tmp_path):
    directory = make_run(tmp_path / "r", status="failed", tokenizer=False, method="a|b<c>\nd")
    assert "**Not to be relied on: it is failed.**" in cards.model_card(directory).splitlines()[2]
    assert "| method | a\\|b&lt;c> d |" in cards.model_card(directory)
