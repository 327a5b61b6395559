"""Throw-away notebooks for the runner's tests."""

import json
from pathlib import Path

PARAMETERS = 'profile = "smoke"\nseed = 0\nlearning_rate = 0.1\nsteps = 3\nname = "a"\nvalue = None'
OPEN = ("from sagelib.runs import open_run\n"
        "run = open_run({'profile': profile, 'seed': seed, 'learning_rate': learning_rate, 'value': value})")
FINISH = "run.finish({'seed': seed})"


def code(source: str, *tags: str) -> dict:
    return {"cell_type": "code", "metadata": {"tags": list(tags)} if tags else {}, "source": source, "outputs": [],
            "execution_count": None}


def make(path: Path, *cells: str, parameters: str = PARAMETERS, tagged: int = 1) -> Path:
    """A notebook whose metadata names a kernel that nobody has."""
    body = [code(parameters, "parameters") for _ in range(tagged)] + [code(c) for c in cells]
    for i, cell in enumerate(body):
        cell["id"] = f"c{i}"
    path.write_text(json.dumps({"cells": body, "nbformat": 4, "nbformat_minor": 5, "metadata": {
        "kernelspec": {"name": "conda-env-foo", "display_name": "foo", "language": "python"}}}))
    return path
