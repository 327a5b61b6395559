"""The runner tells every way a notebook can end apart, and only one of them is "done"."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notebook_maker import FINISH, OPEN, make

from sagelib import run_ids, runs
from sagelib.graph import Step, expand, only
from sagelib.job import Job, execute, tail
from sagelib.parameters import check_parameters, normal
from sagelib.runs import ROOT, RunError, read_metrics
from sagelib.scheduler import Scheduler, minutes


@pytest.fixture(autouse=True)
def runs_directory(tmp_path, monkeypatch):
    place = tmp_path / "all runs"   # with a space on purpose
    monkeypatch.setenv("SAGELIB_RUNS", str(place))
    return place


def marked_processes() -> list[int]:
    """Processes of any run of this test."""
    import psutil
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SAGELIB_RUN", "").startswith(os.environ["SAGELIB_RUNS"]):
                found.append(process.pid)
        except psutil.Error:
            pass
    return found


def wait_for(condition, seconds=120.0):   # starting a kernel takes a minute where others have the cores
    end = time.time() + seconds
    while time.time() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


# ---------------------------------------------------------------- how a run ends

def test_a_good_run_is_done_recorded_and_not_run_twice(tmp_path, monkeypatch):
    notebook = make(tmp_path / "good.ipynb", OPEN, "import os, sys\nrun.log(step=1, loss=float('nan'), cwd=os.getcwd(),"
                    " exe=sys.executable, threads=os.environ['OMP_NUM_THREADS'])\nrun.progress(1, 2, 'half')\n"
                    "run.artifact('weights.bin').write_bytes(b'w')", FINISH)
    monkeypatch.chdir("/")
    record = execute(notebook, {"learning_rate": 0.5, "value": {"a": [1, None]}}, threads=1)
    assert (record["status"], record["reason"]) == ("done", "")
    assert record["parameters"] == {"learning_rate": 0.5, "value": {"a": [1, None]}}
    assert record["parameters_seen"] == {"profile": "smoke", "seed": 0} | record["parameters"]
    assert set(record["artifacts"]) == {"weights.bin", "results.json"}
    assert record["profile"] == "smoke" and record["versions"]["papermill"].startswith("2.7")
    directory = Path(record["directory"])
    row = read_metrics(directory)[0]
    assert row["loss"] is None and row["cwd"] == str(ROOT) and row["exe"] == sys.executable and row["threads"] == "1"
    assert json.loads((directory / "results.json").read_text()) == {"seed": 0}
    assert "over TCP" not in tail(directory) and not (directory / ".kernel").exists()

    again = execute(notebook, {"learning_rate": 0.5, "value": {"a": [1, None]}})
    assert again["attempt"] == 1 and again["started"] == record["started"]
    (directory / "weights.bin").write_bytes(b"changed")
    assert runs.fault(directory) == "its artifact weights.bin was changed after the run"
    assert execute(notebook, {"learning_rate": 0.5, "value": {"a": [1, None]}})["attempt"] == 2


def test_runs_may_be_a_link_to_another_disk(tmp_path, monkeypatch):
    """Every notebook that publishes figures failed then: "artifact ../../../figures/... is missing" (LOG.md, 2026-12-01)."""
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "disk" / "deep")
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    published = tmp_path / "figures" / "table.csv"
    published.parent.mkdir()
    notebook = make(tmp_path / "publishes.ipynb", OPEN, f"run.artifact({str(published)!r}).write_text('1')", FINISH)
    record = execute(notebook, {}, threads=1)
    assert (record["status"], record["reason"]) == ("done", "")
    assert [name for name in record["artifacts"] if name.endswith("table.csv")] == ["../../../../figures/table.csv"]
    assert runs.fault(Path(record["directory"])) is None


ENDS = {
    "killed": ("import os; os.kill(os.getpid(), 9)", "died", "SIGKILL in cell 4"),
    "sys_exit": ("import sys; sys.exit(0)", "incomplete", "cell 4"),
    "os_exit": ("import os; os._exit(0)", "incomplete", "cell 4"),
    "exception": ("1 / 0", "failed", "ZeroDivisionError: division by zero in cell 4"),
    "early_finish": ("import sys; sys.exit(0)", "incomplete", "left before its end"),
    "hang": ("import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\nwhile True: pass",
             "timed_out", "longer than 2 s, in cell 4 of 5 (import subprocess)"),
    "artifact": ("run.artifact('gone.bin')", "failed", "declared but not there: gone.bin"),
    "disk_full": ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
                  "run.log(text='x' * 5000)", "failed", "File too large"),
}


@pytest.fixture(scope="module")
def bad_ends(tmp_path_factory) -> dict[str, dict]:
    """All bad ends, run side by side (starting a kernel takes a second or two)."""
    place, patch = tmp_path_factory.mktemp("ends"), pytest.MonkeyPatch()
    patch.setenv("SAGELIB_RUNS", str(place / "runs"))
    jobs = {}
    for kind, (source, _, _) in ENDS.items():
        cells = [OPEN, source, FINISH] if kind != "early_finish" else [OPEN, FINISH, source, "late = 1"]
        notebook = make(place / f"{kind}.ipynb", *cells)
        jobs[kind] = Job(notebook, {"seed": 1}, timeout=2 if kind == "hang" else None)
        jobs[kind].start()
    wait_for(lambda: all([job.poll() is not None for job in jobs.values()]), 60)
    assert marked_processes() == []
    patch.undo()
    return {kind: job.record() for kind, job in jobs.items()}


@pytest.mark.parametrize("kind", ENDS)
def test_a_bad_end_has_its_status_and_place(kind, bad_ends, tmp_path):
    record, (_, status, reason) = bad_ends[kind], ENDS[kind]
    assert record["status"] == status and reason in record["reason"], record["reason"]
    assert runs.fault(Path(record["directory"])).startswith(f"it is {status}")
    with pytest.raises(RunError, match="cannot be an input"):
        execute(make(tmp_path / "next.ipynb", OPEN, FINISH), {}, inputs=[Path(record["directory"])])


START = ("import sys, json; from sagelib.job import execute; from pathlib import Path\n"
         "print(json.dumps(execute(Path(sys.argv[1]), {})))")


def test_kill_9_of_the_caller_ends_everything(tmp_path, runs_directory):
    notebook = make(tmp_path / "long.ipynb", OPEN, "run.log(step=1)\nimport time; time.sleep(60)", FINISH)
    caller = subprocess.Popen([sys.executable, "-c", START, notebook], cwd=tmp_path,
                              env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        wait_for(lambda: list(runs_directory.glob("*/*/metrics.jsonl")))
    finally:
        caller.kill()
        caller.wait()
    directory = next(runs_directory.glob("*/*/run.json")).parent
    record = wait_for(lambda: (lambda r: r["status"] != "running" and r)(runs.read_run(directory)))
    assert record["status"] == "interrupted" and read_metrics(directory)[0]["step"] == 1
    wait_for(lambda: marked_processes() == [])


def test_kill_9_of_the_runner_is_recognised_and_the_run_goes_on_from_its_files(tmp_path):
    source = ("from pathlib import Path\nmark = run.dir / 'checkpoint'\nfirst = not mark.exists()\nmark.touch()\n"
              "run.log(step=1)\nimport time; time.sleep(60 if first else 0)")
    notebook = make(tmp_path / "resume.ipynb", OPEN, source, FINISH)
    job = Job(notebook, {})
    job.start()
    wait_for(lambda: read_metrics(job.dir))
    with pytest.raises(RunError, match=f"run by process {job.process.pid}"):
        execute(notebook, {})
    job.process.kill()
    code = wait_for(job.poll)
    assert code == -9 and job.record()["status"] == "died" and "SIGKILL" in job.record()["reason"]
    wait_for(lambda: marked_processes() == [])
    with open(job.dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "torn')
    assert [r["step"] for r in read_metrics(job.dir)] == [1]
    record = execute(notebook, {})
    assert record["status"] == "done" and record["attempt"] == 2 and record["directory"] == str(job.dir)
    assert [r["step"] for r in read_metrics(job.dir)] == [1, 1]


def test_stop_is_interrupted(tmp_path):
    job = Job(make(tmp_path / "stop.ipynb", OPEN, "run.log(step=1)\nwhile True: pass", FINISH), {})
    job.start()
    wait_for(lambda: read_metrics(job.dir))
    job.stop()
    assert job.record()["status"] == "interrupted" and marked_processes() == []


def test_record_of_a_vanished_process_reads_as_died(tmp_path):
    runs.write_json(tmp_path / "run.json", {"status": "running", "reason": ""})
    (tmp_path / "lock").write_text("123")
    assert runs.read_run(tmp_path)["status"] == "died"


# ---------------------------------------------------------------- parameters

@pytest.mark.parametrize("name,value,message", [
    ("learning_rat", 1.0, "did you mean 'learning_rate'"), ("zzz", 1, "it has: profile, seed"),
    ("learning_rate", float("nan"), "only finite numbers"), ("value", [1, float("inf")], r"value\[1\] = inf"),
    ("value", (1, 2), "tuple does not arrive unchanged; use a list"), ("value", b"x", "bytes does not arrive"),
    ("value", {1: 2}, "key 1 is no text"), ("value", {1}, "set does not arrive"),
    ("value", np.zeros(2), "ndarray does not arrive"), ("api_key", "x", "looks like a secret"),
    ("hfToken", "x", "looks like a secret")])
def test_unfit_parameters_are_refused_before_anything_runs(tmp_path, runs_directory, name, value, message):
    with pytest.raises(RunError, match=message):
        execute(make(tmp_path / "n.ipynb", OPEN, FINISH), {name: value})
    assert not runs_directory.exists()


def test_paths_and_numpy_scalars_are_normalised(tmp_path):
    notebook = make(tmp_path / "n.ipynb")
    seen = check_parameters(notebook, {"name": Path("a/b"), "steps": np.int64(3), "learning_rate": np.float32(0.5)})
    assert seen == {"name": "a/b", "steps": 3, "learning_rate": 0.5}
    assert [type(v) for v in seen.values()] == [str, int, float]
    no_secret = make(tmp_path / "k.ipynb", parameters="max_tokens_per_turn = 1")
    assert check_parameters(no_secret, {"max_tokens_per_turn": 2}) == {"max_tokens_per_turn": 2}


@pytest.mark.parametrize("tagged", [0, 2])
def test_parameter_cells_are_counted(tmp_path, tagged):
    with pytest.raises(RunError, match=f"has {tagged} cells tagged 'parameters'"):
        execute(make(tmp_path / "n.ipynb", OPEN, FINISH, tagged=tagged), {})


def test_derived_values_in_the_parameters_cell_are_refused(tmp_path):
    with pytest.raises(RunError, match="more than NAME = literal: y = x"):
        execute(make(tmp_path / "n.ipynb", parameters="x = 1\ny = x * 2"), {"x": 3})


def test_unknown_notebook_has_a_suggestion(tmp_path):
    make(tmp_path / "03_train.ipynb")
    with pytest.raises(RunError, match="did you mean 03_train"):
        execute(tmp_path / "03_trian.ipynb", {})


JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**70, 2**70) | st.text()
                    | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                    max_leaves=8)


@given(JSON)
@settings(max_examples=60)
def test_what_papermill_writes_is_what_was_given(value):
    from papermill.translators import PythonTranslator
    assert normal("value", value) == value
    scope: dict = {}
    exec(PythonTranslator.codify({"value": value}), scope)
    assert scope["value"] == value and type(scope["value"]) is type(value)


# ---------------------------------------------------------------- identity and files

def test_run_id_changes_with_what_decides_and_not_with_outputs(tmp_path):
    notebook = make(tmp_path / "n.ipynb", OPEN, FINISH)
    base = run_ids.run_id(notebook, {"seed": 0}, "w", ["a", "b"])
    assert base == run_ids.run_id(notebook, {"seed": 0}, "w", ["b", "a"]) and len(base) == 10
    others = [run_ids.run_id(notebook, {"seed": seed}, world, inputs) for seed, world, inputs in (
        (1, "w", ["a", "b"]), (0, "v", ["a", "b"]), (0, "w", ["a"]), (0, None, ["a", "b"]))]
    assert len({base, *others}) == 5
    data = json.loads(notebook.read_text())
    data["cells"][1] |= {"execution_count": 7, "outputs": [{"output_type": "stream", "name": "stdout", "text": "x"}]}
    notebook.write_text(json.dumps(data))
    assert run_ids.run_id(notebook, {"seed": 0}, "w", ["a", "b"]) == base
    data["cells"][1]["source"] += "\n1"
    notebook.write_text(json.dumps(data))
    assert run_ids.run_id(notebook, {"seed": 0}, "w", ["a", "b"]) != base


def test_only_imported_modules_count_and_comments_do_not(tmp_path):
    for name, text in {"a": "import json\nfrom pkg import b", "b": "x = 1", "c": "y = 1"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert [f.name for f in run_ids.sources("def f():\n    from pkg.a import thing", tmp_path)] == ["a.py", "b.py"]
    before = run_ids.code_hash(tmp_path / "b.py")
    (tmp_path / "b.py").write_text("# why\nx   =  1\n")
    assert run_ids.code_hash(tmp_path / "b.py") == before
    (tmp_path / "b.py").write_text("x = 2")
    assert run_ids.code_hash(tmp_path / "b.py") != before


CONFIG = '''
LIMIT = 1
class Strict: pass
class AConfig(Strict):
    section: str = "a"
    x: int = {x}
class BConfig(AConfig):
    section: str = "b"
    y: int = {y}
'''


def test_a_setting_counts_only_for_the_runs_whose_class_it_is_in(tmp_path, monkeypatch):
    config = tmp_path / "config.py"

    def hashes(x=1, y=1, **profiles) -> tuple[str, str]:
        config.write_text(CONFIG.format(x=x, y=y))
        monkeypatch.setattr(run_ids, "PROFILES", {"laptop": profiles, "paper": {"a": {"x": len(profiles)}}})
        return tuple(run_ids.settings_hash(config, {name}, "laptop") for name in ("AConfig", "BConfig"))

    a, b = hashes()
    assert a != b
    assert hashes(y=2)[0] == a and hashes(y=2)[1] != b
    assert hashes(x=2)[0] != a and hashes(x=2)[1] != b          # a base class counts for the class that has it
    assert hashes(b={"y": 3})[0] == a and hashes(b={"y": 3})[1] != b
    assert hashes(a={"x": 3})[0] != a


def test_no_training_depends_on_the_command_line_or_the_scheduler():
    """Else an edit there, another ablation for instance, would make every run stale."""
    for name in ("01_collect", "02_sft", "03_train", "04_evaluate"):
        cells = run_ids.notebook_cells(ROOT / "notebooks" / f"{name}.ipynb")
        files = run_ids.library_sources("\n".join(c["source"] for c in cells if c["type"] == "code"))
        assert "runs.py" in {f.name for f in files}
        assert not {f.name for f in files} & {"cli.py", "graph.py", "scheduler.py", "setup.py", "building.py", "job.py",
                                              "parameters.py", "runner.py", "run_ids.py", "ablations.py", "figures.py"}, name


def test_write_json_keeps_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    runs.write_json(target, {"a": 1})
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        runs.write_json(target, {"a": 2})
    assert json.loads(target.read_bytes()) == {"a": 1} and os.listdir(tmp_path) == ["run.json"]


def test_rewind_drops_rows_after_the_checkpoint(tmp_path):
    run = runs.Run(tmp_path, {"run_id": "x"}, [])
    for step in (1, 2, 3):
        run.log(step=step, value=np.float32(step))
    run.rewind(2)
    assert [(r["step"], r["value"]) for r in read_metrics(tmp_path)] == [(1, 1.0), (2, 2.0)]


def test_interactive_run(monkeypatch, runs_directory):
    monkeypatch.setenv("JPY_SESSION_NAME", "/x/03_train.ipynb")
    monkeypatch.delenv("SAGELIB_RUN", raising=False)
    run = runs.open_run({"profile": "smoke", "seed": 3})
    assert run.dir.parent == runs_directory / "interactive" and run.dir.name.startswith("03_train-")
    assert runs.read_run(run.dir)["status"] == "running"
    with pytest.raises(RunError, match="--profile smoke --only 02_sft"):
        run.input("02_sft")
    run.finish({"a": 1})
    assert runs.fault(run.dir) is None and run.input("03_train") == run.dir


# ---------------------------------------------------------------- the graph

TABLE = (Step("collect", per_seed=False), Step("sft", needs=("collect",)),
         Step("train", needs=("sft",), variants=({"method": "grpo"}, {"method": "sage"})),
         Step("evaluate", needs=("sft", "train"), variants=({"method": "sft"}, {"method": "sage"})),
         Step("figures", needs=("evaluate",), per_seed=False, all_seeds=True))


def test_expansion_matches_seeds_and_variants():
    nodes = expand(TABLE, "smoke", [0, 1])
    names = [n.name for n in nodes]
    assert len(nodes) == 1 + 2 + 4 + 4 + 1 and names[0] == "collect"
    needs = {n.name: [names[i] for i in n.needs] for n in nodes}
    assert needs["train sage seed 1"] == ["sft seed 1"]
    assert needs["evaluate sage seed 1"] == ["sft seed 1", "train sage seed 1"]
    assert needs["evaluate sft seed 0"] == ["sft seed 0"]
    assert len(needs["figures"]) == 4
    assert nodes[names.index("train sage seed 1")].parameters == {"profile": "smoke", "seed": 1, "method": "sage"}
    assert "seed" not in nodes[0].parameters and nodes[-1].parameters == {"profile": "smoke", "seeds": [0, 1]}
    assert expand(TABLE, "gpu", [0])[0].timeout_s is None
    assert {names[i] for i in only(nodes, "sft")} == {"collect", "sft seed 0", "sft seed 1"}
    with pytest.raises(RunError, match="there are: collect"):
        only(nodes, "nope")


def test_threads_follow_from_the_notebook_not_from_what_else_runs(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    nodes = expand(TABLE, "smoke", [0])   # one collect, sft and figures; two trainings and evaluations
    scheduler = Scheduler(nodes, set(range(len(nodes))), jobs=4)
    assert {n.notebook: scheduler._threads(n.notebook) for n in nodes} == {
        "collect": 8, "sft": 8, "train": 4, "evaluate": 4, "figures": 8}
    assert Scheduler(nodes, {0, 1, 2}, jobs=4)._threads("train") == 8
    many = expand(TABLE, "smoke", list(range(9)))
    assert Scheduler(many, set(range(len(many))), jobs=4)._threads("train") == 2
    assert Scheduler(many, set(range(len(many))), jobs=20)._threads("train") == 1


def test_scheduler_failure_stops_only_what_needs_it(tmp_path, capsys):
    a, b, c, d = (str(tmp_path / f"{n}.ipynb") for n in "abcd")
    make(Path(a), OPEN, FINISH)
    make(Path(b), OPEN, "1 / 0", FINISH)
    make(Path(c), OPEN, f"assert run.input('a').name.startswith('a-')\nassert len(run.inputs('a')) == 1\n{FINISH}")
    make(Path(d), OPEN, FINISH)
    steps = (Step(a, per_seed=False), Step(b, per_seed=False), Step(c, needs=(a,), per_seed=False),
             Step(d, needs=(b,), per_seed=False))
    scheduler = Scheduler(expand(steps, "smoke", [0]), {0, 1, 2, 3}, jobs=2)
    assert scheduler.run() is False
    assert {i: r["status"] for i, r in scheduler.records.items()} == {0: "done", 1: "failed", 2: "done"}
    assert list(scheduler.blocked) == [3]
    summary = scheduler.summary()
    assert "b: failed: ZeroDivisionError" in summary and "log.txt" in summary and "executed.ipynb" in summary
    second = Scheduler(expand(steps, "smoke", [0]), {0, 2}, jobs=2)
    assert second.run() is True and "done before" in capsys.readouterr().out


def test_a_run_whose_directory_is_deleted_meanwhile_ends_with_one_sentence(tmp_path, capsys):
    slow = "run.log(step=1)\nimport time; time.sleep(2)\nrun.log(step=2)"
    a, b = (make(tmp_path / f"{n}.ipynb", OPEN, slow, FINISH) for n in "ab")
    steps = (Step(str(a), per_seed=False), Step(str(b), needs=(str(a),), per_seed=False))
    scheduler = Scheduler(expand(steps, "smoke", [0]), {0, 1}, jobs=2)

    def delete() -> None:
        place = wait_for(lambda: [p.parent for p in runs.runs_root().glob("smoke/a-*/metrics.jsonl")], 120)[0]
        shutil.rmtree(place)

    thread = threading.Thread(target=delete)
    thread.start()
    assert scheduler.run() is False   # no exception
    thread.join()
    record = scheduler.records[0]
    assert record["status"] == "died" and record["reason"] == f"its directory was deleted while it ran ({record['directory']})"
    assert scheduler.blocked == {1: "needs a, which is not done"} and not Path(record["directory"]).exists()
    assert scheduler.summary().splitlines() == [f"  a: died: {record['reason']}", "  b: not run, needs a, which is not done"]
    assert capsys.readouterr().out.count("was deleted while it ran") == 1 and marked_processes() == []


WORKBENCH = ("import signal, sys; from sagelib import cli; from sagelib.graph import Step\n"
             "signal.signal(signal.SIGINT, signal.default_int_handler)\n"   # a background shell starts us with it ignored
             "cli.GRAPH = tuple(Step(path, per_seed=False) for path in sys.argv[1:])\n"
             "sys.exit(cli.main(['reproduce', '--profile', 'smoke', '--jobs', '2']))")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_stopping_reproduce_leaves_records_and_no_process(tmp_path, sign, runs_directory):
    notebooks = [make(tmp_path / f"{n}.ipynb", OPEN, "run.log(step=1)\nwhile True: pass", FINISH) for n in "ab"]
    workbench = subprocess.Popen([sys.executable, "-c", WORKBENCH, *notebooks], cwd=tmp_path, stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True)
    try:
        wait_for(lambda: len(list(runs_directory.glob("*/*/metrics.jsonl"))) == 2)
        workbench.send_signal(sign)
        _, errors = workbench.communicate(timeout=120)
    finally:
        workbench.kill()   # and with it what it started
    assert workbench.returncode == 130 and errors == "stopped; the same command goes on from here\n"
    assert [r["status"] for r in runs.list_runs()] == ["interrupted"] * 2 and marked_processes() == []


def test_minutes():
    assert [minutes(s) for s in (5, 185, 3723)] == ["0:05", "3:05", "1:02:03"]
