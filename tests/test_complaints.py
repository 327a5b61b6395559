"""COMPLAINTS.md names tests that exist; and the kinds of fault in it that have no test elsewhere."""
import ast
import re
import subprocess

import pytest
from notebook_maker import FINISH, OPEN, make

from sagelib.config import ConfigError, TrainConfig
from sagelib.job import execute
from sagelib.run_ids import imported_names
from sagelib.runs import ROOT

ROWS = re.findall(r"(?m)^\| (C\d+) \| (.+?) \| (handled|part|no) \| (.+) \|$", (ROOT / "tests" / "COMPLAINTS.md").read_text())


def test_every_row_is_whole_and_names_tests_that_exist():
    lines = [line for line in (ROOT / "tests" / "COMPLAINTS.md").read_text().splitlines() if line.startswith("| C")]
    ids = [row[0] for row in ROWS]
    assert len(ROWS) == len(lines) > 60 and ids == sorted(set(ids))
    for name, _, state, how in ROWS:
        tests = re.findall(r"`(test_\w+\.py)::(test_\w+)`", how)
        assert bool(tests) == (state != "no") or state == "part", name
        for file, test in tests:
            tree = ast.parse((ROOT / "tests" / file).read_text())
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{name}: {file}::{test}"


def test_appworlds_own_command_starts(appworld_python):
    done = subprocess.run([appworld_python.with_name("appworld"), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "install" in done.stdout, done.stderr[-1000:]


def test_only_what_runs_inside_vllm_imports_it():
    """That file is loaded by vLLM's worker in an environment whose release is pinned; no module of ours imports it."""
    files = [*(ROOT / "sagelib").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert len(files) > 50 and [f.name for f in files if "vllm" in imported_names(f.read_text())] == ["refresh.py"]
    assert not any("refresh" in imported_names(f.read_text()) for f in files)


def test_running_a_notebook_changes_no_tracked_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    notebook = make(tmp_path / "a.ipynb", OPEN, "print('out')", FINISH)
    before = notebook.read_bytes()
    record = execute(notebook, {})
    assert record["status"] == "done" and notebook.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ipynb", "runs"]
    ignored = subprocess.run(["git", "check-ignore", "runs/smoke/a-0/run.json", "data/another/world.json"], cwd=ROOT,
                             capture_output=True, text=True)
    if "not a git repository" in ignored.stderr:
        pytest.skip("this is no git checkout")
    assert ignored.stdout.split() == ["runs/smoke/a-0/run.json", "data/another/world.json"]


@pytest.mark.parametrize("setting, text", [
    ({"top_p": 0.9}, "top_p = 0.9: there is no such setting"), ({"top_k": 50}, "top_k = 50: there is no such setting"),
    ({"credit": "skil_integrated"}, "did you mean 'skill_integrated'?"),
    ({"advantages": "default"}, "there is no such setting")])
def test_settings_that_would_bias_the_ratio_do_not_exist(setting, text):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_parameters("laptop", method="sage", **setting)
    assert text in str(caught.value)
