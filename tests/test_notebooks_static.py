"""Every committed notebook is one that the runner can run and a person can read."""

import ast
import json
import re
from pathlib import Path

import pytest

from sagelib.ablations import STUDIES
from sagelib.cli import steps_of
from sagelib.parameters import declared
from sagelib.profiles import PROFILES
from sagelib.rise_graph import CODE, RISE
from sagelib.runs import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FAULTS = {
    "a shell or magic line": r"(?m)^\s*[!%]",
    "an absolute path": r"""["'](/(home|Users|tmp|root|mnt|data|work)\b|[A-Z]:\\)""",
    "the working directory": r"Path\.cwd\(\)|os\.getcwd\(\)|os\.chdir",
    "a class": r"(?m)^\s*class ",
    "a worker pool of notebook functions": r"multiprocessing|ProcessPoolExecutor",
}


def faults(path: Path) -> list[str]:
    """Everything that is wrong with a notebook, in words."""
    data = json.loads(path.read_text())
    found = [] if data["metadata"].get("kernelspec", {}).get("name") == "python3" else ["kernelspec is not python3"]
    code = [c for c in data["cells"] if c["cell_type"] == "code"]
    tagged = [c for c in code if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1 or code[0] is not tagged[0]:
        found.append("the first code cell is not its one parameters cell")
    for number, cell in enumerate(code, 1):
        source = "".join(cell["source"])
        if cell["outputs"] or cell["execution_count"] is not None:
            found.append(f"code cell {number} has outputs or a count")
        if source.count("\n") >= 25:
            found.append(f"code cell {number} has more than 25 lines")
        found += [f"code cell {number} has {what}" for what, sign in FAULTS.items() if re.search(sign, source)]
    if not re.search(r"\brun\.finish\(", "".join(code[-1]["source"])):
        found.append("the last code cell does not call run.finish")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_clean(path):
    assert faults(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_parameters_are_literals_and_fit_the_graph(path):
    names = set(declared(path))
    assert "profile" in names
    steps = (*(s for profile in PROFILES for s in steps_of(profile)), *RISE, *CODE)
    for step in {step.notebook: step for step in steps}.values():
        if step.notebook == path.stem:
            assert names >= set().union(*step.variants) | ({"seeds"} if step.all_seeds else set())
            assert ("seed" in names) >= step.per_seed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_functions_in_notebooks_are_tiny(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.FunctionDef):
                    assert node.end_lineno - node.lineno < 8, node.name


def test_the_graph_and_the_folder_agree():
    main = {step.notebook for step in (*(s for profile in PROFILES for s in steps_of(profile)), *RISE, *CODE)}
    studies = {study.notebook for study in STUDIES}
    of_cells = {notebook for study in STUDIES for cell in study.cells for notebook, _ in cell.path}
    assert main | studies | of_cells == {path.stem for path in NOTEBOOKS} and not main & studies


def test_the_checks_see_what_they_should(tmp_path):
    from notebook_maker import make
    assert faults(make(tmp_path / "a.ipynb", "!ls\nclass A: pass\nopen('/home/me/x')", "\n" * 30)) == [
        "kernelspec is not python3", "code cell 2 has a shell or magic line", "code cell 2 has an absolute path",
        "code cell 2 has a class", "code cell 3 has more than 25 lines", "the last code cell does not call run.finish"]
