"""Finished runs of the smoke profile, for the tests of notebooks.

    python tests/smoke_runs.py PARENT     # makes all of them, one at a time, until the process PARENT ends

`./workbench test` starts that beside the other tests, which leave a core idle; a test then waits for what is running and
runs what is not begun itself (runs are locked, so that two schedulers share a graph).
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from unittest import mock

from sagelib import cli, rise_worlds, runs
from sagelib.ablations import STUDIES
from sagelib.graph import add_studies, expand, only
from sagelib.kernel import die_with_parent
from sagelib.rise_graph import VERSUS, rise_nodes
from sagelib.rise_worlds import of_profile
from sagelib.runs import read_json, write_json
from sagelib.scheduler import Local, Scheduler

background: subprocess.Popen | None = None


class OneThread(Local):
    """Here, each run with one thread: of models this small a second one makes heat, and the other core has work."""

    def threads(self, together: int) -> int:
        return 1


cli.EXECUTORS["tests"] = OneThread


def finish(notebook=None, world=None):
    """(notebook, method) -> record of each finished run; the notebook and what it needs, None: the main job."""
    with mock.patch.dict(os.environ, read_json(place_of_kernels()) or {}):
        good, scheduler = cli.reproduce("smoke", seeds=[0], notebook=notebook, world=world, jobs=2, executor="tests")
    assert good, scheduler.summary()
    return {(r["notebook"], r["parameters"].get("method")): r for r in scheduler.records.values()}


def directory(record):
    return runs.runs_root() / "smoke" / f"{record['notebook']}-{record['run_id']}"


def results(record):
    return json.loads((directory(record) / "results.json").read_text())


def behind(nodes, more):
    """Two tables as one."""
    return nodes + [replace(node, needs=tuple(len(nodes) + k for k in node.needs)) for node in more]


def everything(engine=True):
    """(nodes, indices of those to run): SkillRise in the shop; if the engine is there also the main job with its studies before
    it, and behind it SkillRise in AppWorld as far as `VERSUS` needs it."""
    shop, code = rise_nodes("smoke", [0]), rise_nodes("smoke", [0], of_profile("appworld", "smoke"))
    if not engine:
        return shop, set(range(len(shop)))
    nodes = behind(add_studies(expand(cli.GRAPH, "smoke", [0]), STUDIES, "smoke", [0]), shop)
    return behind(nodes, code), {*range(len(nodes)), *(len(nodes) + i for i in only(code, VERSUS))}


def start():
    """Begins to make all runs in a process of lower priority; `stop` ends it."""
    global background
    log = runs.runs_root() / "smoke" / "tests.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        background = subprocess.Popen([sys.executable, "-P", __file__, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=file, env=os.environ | {"PYTHONPATH": str(runs.ROOT)}, cwd=runs.ROOT)


def stop():
    """No run of `start` is under way afterwards."""
    if background is not None:
        background.terminate()
        background.wait()


def place_of_kernels():
    """What notebooks that other processes of the tests run have in their environment, to share the kernels' process. Left
    behind it does no harm: without that process the kernels are the usual ones."""
    return runs.runs_root() / "smoke" / "kernels.json"


def warm_kernels(path):
    """From when it is ready on, notebooks run in kernels that one process forks; it ends with this one."""
    script = str(runs.ROOT / "tests" / "warm_kernel.py")
    settings = {"PYTHONPATH": str(runs.ROOT), "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}   # as every kernel has
    subprocess.Popen([sys.executable, "-P", script, "--serve", path, str(os.getpid())], env=os.environ | settings)
    os.environ.update(kernels := {"SAGELIB_KERNEL": script, "WARM_KERNELS": path})
    write_json(place_of_kernels(), kernels)


def main():
    signal.signal(signal.SIGTERM, cli.stop)
    die_with_parent(signal.SIGTERM, int(sys.argv[1]))
    os.nice(1)
    nodes, chosen = everything(engine=(runs.ROOT / "data" / "smoke" / "datasets.json").exists())
    for world in {node.parameters["world"] for node in nodes if "world" in node.parameters}:
        rise_worlds.find(world).directory()   # before any id is computed: they hold its hash
    with tempfile.TemporaryDirectory() as place:
        warm_kernels(os.path.join(place, "socket"))
        try:
            return 0 if Scheduler(nodes, chosen, OneThread(1)).run() else 1
        finally:
            place_of_kernels().unlink()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
