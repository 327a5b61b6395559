"""Nodes on a Ray cluster of two machines (two raylets here): the same ids and records; a lost machine is a gap, and resumes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from notebook_maker import FINISH, OPEN, PARAMETERS, make
from test_runs import marked_processes, wait_for

from sagelib import cli, runs
from sagelib.graph import Node, Step, expand
from sagelib.job import Job
from sagelib.runs import RunError, read_metrics
from sagelib.scheduler import Scheduler

MISSING = "ray is not installed here; .venvs/main/bin/python -m pip install -e '.[ray]' adds it"
pytestmark = pytest.mark.timeout(900)   # Ray needs most of a minute to start where others have the cores


def test_without_ray_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sagelib.ray_jobs", raising=False)
    with pytest.raises(RunError, match=r"--executor ray needs the extra ray\. Fix: .*pip install -e '\.\[ray\]'"):
        cli.reproduce("smoke", [0], executor="ray")


@pytest.fixture(scope="module")
def machines():
    """A head and a second machine, one core each; the driver is connected."""
    ray = pytest.importorskip("ray", reason=MISSING)
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}   # Ray's own is 15
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def place(machines, tmp_path, monkeypatch):
    """The executor, with runs/ in a folder of the test."""
    from sagelib.ray_jobs import Cluster

    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    return Cluster()


def nodes_of(tmp_path, **cells):
    """A node per notebook, none needing another."""
    for name, source in cells.items():
        make(tmp_path / f"{name}.ipynb", OPEN, source, FINISH)
    return expand([Step(str(tmp_path / f"{name}.ipynb"), per_seed=False) for name in cells], "smoke", [0])


def test_two_runs_share_two_machines_and_are_the_local_ones(place, tmp_path):
    assert (place.jobs, place.cpus, place.gpus, place.threads(2)) == (2, 1, 0, 1)
    meet = ("import os, time\nfrom pathlib import Path\n(run.dir.parent / '{me}').touch()\nend = time.time() + 200\n"
            "while not (run.dir.parent / '{other}').exists():\n    assert time.time() < end\n    time.sleep(0.1)\n"
            "run.log(step=1, machine=os.environ['RAY_RAYLET_PID'], threads=os.environ['OMP_NUM_THREADS'])")
    nodes = nodes_of(tmp_path, a=meet.format(me="mark_a", other="mark_b"), b=meet.format(me="mark_b", other="mark_a"))
    scheduler = Scheduler(nodes, {0, 1}, place)
    assert scheduler.run() is True, scheduler.summary()
    rows = [read_metrics(Path(scheduler.records[i]["directory"]))[0] for i in (0, 1)]   # neither ends before both run
    assert len({row["machine"] for row in rows}) == 2 and {row["threads"] for row in rows} == {"1"}
    for i, node in enumerate(nodes):
        job = Job(node.notebook, node.parameters)
        assert job.run_id == scheduler.records[i]["run_id"] and runs.fault(job.dir) is None
    again = Scheduler(nodes, {0, 1}, 2)                                                  # here: nothing to do
    assert again.run() is True and {r["attempt"] for r in again.records.values()} == {1}
    assert marked_processes() == []


def test_a_failed_run_is_a_gap_with_its_reason(place, tmp_path):
    nodes = nodes_of(tmp_path, good="pass", bad="1 / 0")
    end = "run.finish({'missing': missing, 'n': len(run.inputs('good'))})"
    study = make(tmp_path / "study.ipynb", OPEN, end, parameters=PARAMETERS + "\nmissing = {}")
    nodes.append(Node("study", str(study), {"profile": "smoke"}, None, (0, 1), None, main=False, gaps=True))
    scheduler = Scheduler(nodes, {0, 1, 2}, place)
    assert scheduler.run() is False and [scheduler.records[i]["status"] for i in range(3)] == ["done", "failed", "done"]
    results = runs.read_json(Path(scheduler.records[2]["directory"]) / "results.json")
    assert results["n"] == 1 and results["missing"]["bad"].startswith("failed: ZeroDivisionError: division by zero in cell 4")


CHECKPOINT = ("import time\nmark = run.dir / 'checkpoint'\nfirst = not mark.exists()\nmark.touch()\nrun.log(step=1)\n"
              "time.sleep(300 if first else 0)")


def test_a_lost_machine_is_a_gap_and_the_same_command_goes_on(machines, place, tmp_path):
    import ray

    extra = machines.add_node(num_cpus=2)   # the only one with two cores
    wait_for(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 3)
    place.cpus = 2
    nodes = nodes_of(tmp_path, lost=CHECKPOINT)
    scheduler = Scheduler(nodes, {0}, place)

    def lose() -> None:
        wait_for(lambda: list(runs.runs_root().glob("smoke/lost-*/metrics.jsonl")), 200)
        machines.remove_node(extra, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    assert scheduler.run() is False
    thread.join()
    record = scheduler.records[0]
    assert record["status"] in ("died", "interrupted"), record        # the runner there may have said its own last word
    assert "its Ray task was lost" in record["reason"] or "SIGTERM" in record["reason"]
    assert "lost" in scheduler.summary()
    wait_for(lambda: marked_processes() == [], 60)
    place.cpus = 1
    second = Scheduler(nodes, {0}, place)
    assert second.run() is True and second.records[0]["attempt"] == 2
    assert second.records[0]["run_id"] == record["run_id"]
    assert [row["step"] for row in read_metrics(Path(record["directory"]))] == [1, 1]


def test_a_run_that_no_machine_can_begin_is_said(place, tmp_path, monkeypatch):
    from sagelib import ray_jobs

    monkeypatch.setattr(ray_jobs, "FITS_S", 1)
    place.cpus = 64
    scheduler = Scheduler(nodes_of(tmp_path, large="pass"), {0}, place)
    assert scheduler.run() is False
    assert "no machine of the cluster has 64 cores any more" in scheduler.records[0]["reason"]


WORKBENCH = ("import sys; from sagelib import cli; from sagelib.graph import Step\n"
             "cli.GRAPH = tuple(Step(path, per_seed=False) for path in sys.argv[1:])\n"
             "sys.exit(cli.main(['reproduce', '--profile', 'smoke', '--jobs', '2', '--executor', 'ray']))")


def workbench(machines, *notebooks):
    """`./workbench reproduce --executor ray` of these notebooks, connected to the machines as a user would."""
    env = os.environ | {"PYTHONPATH": str(runs.ROOT), "RAY_ADDRESS": machines.address}
    return subprocess.Popen([sys.executable, "-c", WORKBENCH, *map(str, notebooks)], env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, cwd=notebooks[0].parent)


def test_stopping_reproduce_ends_the_runs_on_their_machines(machines, place, tmp_path):
    notebooks = [make(tmp_path / f"{n}.ipynb", OPEN, "run.log(step=1)\nwhile True: pass", FINISH) for n in "ab"]
    command = workbench(machines, *notebooks)
    try:
        wait_for(lambda: len(list(runs.runs_root().glob("*/*/metrics.jsonl"))) == 2, 300)
        command.send_signal(signal.SIGTERM)
        _, errors = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 130 and errors.splitlines()[-1] == "stopped; the same command goes on from here"
    assert [r["status"] for r in runs.list_runs()] == ["interrupted"] * 2
    wait_for(lambda: marked_processes() == [], 30)


def test_reproduce_on_a_cluster_tells_what_is_done(machines, place, tmp_path):
    command = workbench(machines, make(tmp_path / "a.ipynb", OPEN, FINISH))
    said, errors = command.communicate(timeout=400)
    assert command.returncode == 0, errors
    assert "a: done in" in said and [r["status"] for r in runs.list_runs()] == ["done"]


def test_a_machine_without_the_shared_folder_or_with_other_packages_is_refused(machines, place, monkeypatch):
    from sagelib import ray_jobs

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", lambda *_: None)
        with pytest.raises(RunError, match="does not see .*runs, which must be on a file system that all machines share"):
            ray_jobs.Cluster()
    monkeypatch.setattr(ray_jobs, "versions", lambda: {"numpy": "0.1"})
    with pytest.raises(RunError, match=r"has numpy [2-9]\S+, here is 0\.1"):
        ray_jobs.Cluster()


def test_a_machine_whose_code_differs_makes_no_run_of_that_name(place, tmp_path):
    [node] = nodes_of(tmp_path, a="pass")
    job = place.job(node.notebook, node.parameters)
    job.run_id = "0123456789"
    job.start()
    assert wait_for(lambda: job.poll(), 120) == 1
    record = job.record()
    assert record["status"] == "failed" and "of what is 0123456789 here: its code or data differ" in record["reason"]


def test_a_record_that_does_not_appear_here_is_said(place, tmp_path, monkeypatch):
    from sagelib import ray_jobs

    monkeypatch.setattr(ray_jobs, "VISIBLE_S", 0.2)
    [node] = nodes_of(tmp_path, a="pass")
    job = place.job(node.notebook, node.parameters)
    job.start()
    job.before = None
    wait_for(lambda: runs.read_json(job.dir / "run.json") and runs.read_run(job.dir)["status"] == "done", 120)
    job.dir, elsewhere = tmp_path / "not shared", job.dir
    job.dir.mkdir()
    assert wait_for(lambda: job.poll(), 30) == 1 and runs.read_run(elsewhere)["status"] == "done"
    assert runs.read_run(job.dir)["reason"] == ("it ended on its machine (exit code 0), but its record did not appear here: "
                                                "is runs/ shared?")


@pytest.mark.parametrize("machines_cores,jobs,expected", [
    ([8, 8], 2, 8), ([8, 8], 4, 4), ([16, 2], 2, 8), ([4, 4, 4], 2, 4), ([2], 5, 1), ([], 1, 1)])
def test_cores_of_a_run(machines_cores, jobs, expected):
    pytest.importorskip("ray", reason=MISSING)
    from sagelib.ray_jobs import share

    assert share(machines_cores, jobs) == expected and share([0, 0], jobs, least=0) == 0
