"""Finished runs of the smoke profile, for the tests of notebooks."""
import json

from sagelib import cli, runs


def finish(notebook=None, world=None):
    """(notebook, method) -> record of each finished run; the notebook and what it needs, None: the main job."""
    good, scheduler = cli.reproduce("smoke", seeds=[0], notebook=notebook, world=world)
    assert good, scheduler.summary()
    return {(r["notebook"], r["parameters"].get("method")): r for r in scheduler.records.values()}


def directory(record):
    return runs.runs_root() / "smoke" / f"{record['notebook']}-{record['run_id']}"


def results(record):
    return json.loads((directory(record) / "results.json").read_text())
