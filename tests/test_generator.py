"""The generator's gates, in the real engine: a task that proves nothing is refused and leaves nothing behind."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[1] / "sagelib" / "engine"

BUILD = """
import dataclasses, json, os, sys
from pathlib import Path
root = Path(os.environ["APPWORLD_ROOT"])
from scenario import Truth, load_families
import drafts
from build import Builder
families = {f.name: f for f in load_families()}
truth, builder = Truth(root / "data" / "base_dbs"), Builder(root)

def draft(name):
    person, value = drafts.pool(families[name], truth, 7, 0)[0]
    return drafts.make(families[name], truth, person, value, 7)

action, question = draft("phone.delete.alarms.labelled.direct"), draft("spotify.count.liked_songs.with_word.direct")
tries = {
    "good action": action,
    "good question": question,
    "reference forgets the filter": dataclasses.replace(action, main=action.near_miss),
    "truth is off by one": dataclasses.replace(question, answer=question.answer + 1),
    "near miss is no miss": dataclasses.replace(action, near_miss=action.main),
}
reasons = {}
for i, (name, tried) in enumerate(tries.items()):
    task = f"{0xabc0000 + i:07x}_1"
    reasons[name] = [builder.build(task, tried, "stamp"), (root / "data" / "tasks" / task / "specs.json").exists()]
print("RESULT" + json.dumps(reasons))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def reasons(appworld_python, mini_world, tmp_path_factory) -> dict:
    root = tmp_path_factory.mktemp("gates")
    (root / "data" / "tasks").mkdir(parents=True)
    for part in ("base_dbs", "api_docs"):
        (root / "data" / part).symlink_to(mini_world.resolve() / "judge" / "data" / part)
    env = os.environ | {"APPWORLD_ROOT": str(root), "APPWORLD_CACHE": str(root / "cache"), "PYTHONPATH": str(ENGINE)}
    done = subprocess.run([appworld_python, "-c", BUILD], env=env, cwd=root, capture_output=True, text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[0].removeprefix("RESULT"))


@pytest.mark.parametrize("name", ["good action", "good question"])
def test_a_sound_task_is_built(reasons, name):
    assert reasons[name] == [None, True]


@pytest.mark.parametrize("name, why", [
    ("reference forgets the filter", "reference fails"),
    ("truth is off by one", "the main function prints"),
    ("near miss is no miss", "near miss passes"),
])
def test_an_unsound_task_is_refused_and_leaves_nothing(reasons, name, why):
    reason, left = reasons[name]
    assert why in reason and not left
