"""Self-distillation: which traces are kept, and 05_self_distill on the real engine with a Base that solves something."""

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import unavailable
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format
from notebook_maker import FINISH, OPEN, PARAMETERS, make

from sagelib import datasets
from sagelib.job import execute
from sagelib.prompts import reply
from sagelib.rollout import RolloutSettings, rollout
from sagelib.self_distill import demonstrations, steps, warning
from sagelib.sft import IGNORED, encode_demonstration

SETTINGS = RolloutSettings(max_turns=3, max_tokens_per_turn=400, max_context=4000)
DONE = "apis.supervisor.complete_task()"
ADD = "def add(text):\n    apis.notes.add(text=text)\n"
FIRST = [reply("I write a skill.", f"{ADD}add('a')"), reply("Done.", DONE)]
SCRIPT = {
    (0, 0): FIRST, (0, 1): FIRST,
    (0, 2): [reply("No.", DONE)],
    (1, 0): [reply("Wrong.", "ad('b')"), reply("Again.", f"add('b')\n{DONE}")],
    (1, 1): [reply("Wrong note.", f"add('c')\n{DONE}")],
    (1, 2): [reply("It fails behind its work.", "apis.notes.add(text='b')\n1 / 0"), "I do not know."],
}


def played(script, copies=3):
    """Copies of one chain of two tasks; task s_1 wants the note a, task s_2 the note b."""
    policy = ReplayPolicy(tiny_format(), lambda position, row, turn: script[position, row][turn])
    return rollout([chain("s_1", "s_2")], copies, policy, FakeWorld({"s_1": ["a"], "s_2": ["b"]}), tiny_format(), SETTINGS, 1)


def test_solved_tasks_are_kept_once_and_failed_blocks_are_not_trained():
    runs = played(SCRIPT)
    assert [[e.success for e in run.episodes] for run in runs] == [[True, True], [True, False], [False, True]]
    rows = demonstrations(runs, {"s": "notes.write"})
    # copies 0 and 1 played s_1 alike; what copy 2 solved in s_2 has no clean block
    assert [(r["task_id"], r["family"], r["position"], r["mode"]) for r in rows] == [
        ("s_1", "notes.write", 0, "own"), ("s_2", "notes.write", 1, "own")]
    assert [t["trained"] for t in rows[0]["turns"]] == [True, True]
    assert [t["trained"] for t in rows[1]["turns"]] == [False, True]
    assert [t["text"] for t in rows[0]["turns"]] == FIRST


def test_a_trace_becomes_an_example_with_the_prompt_that_was_played():
    runs = played(SCRIPT)
    rows = demonstrations(runs, {"s": "notes.write"})
    assert "def add(text)" in rows[1]["prompt"]   # the library that task 1 left
    for row, episode in zip(rows, runs[0].episodes, strict=True):
        example = encode_demonstration(tiny_format(), row)
        assert example["input_ids"][: len(episode.segment.prompt_ids)] == episode.segment.prompt_ids
        assert tiny_format().decode(example["input_ids"]) == tiny_format().decode(episode.segment.ids)
        taught = [label for label in example["labels"] if label != IGNORED]
        said = [turn["text"] for turn in row["turns"] if turn["trained"]]
        assert tiny_format().decode(taught) == "".join(said)


def test_without_a_success_there_is_nothing_to_distil():
    nothing = {(k, i): [reply("No.", DONE)] for k in (0, 1) for i in (0, 1)}
    with pytest.raises(RuntimeError, match="solved none of 4 tasks that it played: there is nothing to distil. Fix: more plays"):
        demonstrations(played(nothing, copies=2), {"s": "notes.write"})


def test_steps_show_each_trace_so_often_beside_the_pairs():
    assert steps(100, 4, 8, 0.4) == 80       # 5 of 8 are traces
    assert steps(1, 1, 8, 0.4) == 1 and steps(10, 2, 4, 0.0) == 5
    assert warning(50, 50) == "" and warning(3, 50).startswith("only 3 own traces, fewer than 50: ")


# ---- the notebook, with a small Base that was trained on the training scenarios themselves

BASE = ("""
import torch
from torch.nn.utils.rnn import pad_sequence

from sagelib import datasets, expert, sft, tiny
from sagelib.appworld import EnginePool, Limits
from sagelib.prompts import ChatFormat

world = datasets.world_dir("smoke")
chains, _ = datasets.load_dataset("smoke", "train", 2)
with EnginePool(world, parallel=2, limits=Limits(step_s=20.0)) as pool:
    bare = ChatFormat(tiny.train_tokenizer([], vocab_size=300))
    rows, _ = expert.collect(world, pool, bare, chains, seed=0, plain=0.0, reuse=1.0, update=0.0)
""", """
texts = [r["prompt"] + "\\n" + "\\n".join(t["text"] + "\\n" + t["observation"] + "\\nuser\\nassistant\\n" for t in r["turns"])
         for r in rows]
tokenizer = tiny.train_tokenizer(texts, 700)
model = tiny.make_model(tokenizer, width=64, layers=2, heads=1, seed=0)
demos = [sft.encode_demonstration(ChatFormat(tokenizer), row) for row in rows]
ids, labels = (pad_sequence([torch.tensor(d[key]) for d in demos], batch_first=True, padding_value=pad)
               for key, pad in (("input_ids", 0), ("labels", sft.IGNORED)))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for _ in range(steps):
    model(input_ids=ids, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
tiny.save_policy(run.artifact("base"), model, tokenizer);
""")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """`base(steps)`: directory of a finished 02_sft that made a Base by so many steps on the expert's traces of the very
    scenarios that 05_self_distill plays."""
    if not (datasets.REPOSITORY / "data" / "smoke" / "datasets.json").exists():
        unavailable("the smoke world is not generated; ./workbench test (or ./workbench setup --profile smoke) makes it")
    place = tmp_path_factory.mktemp("distil")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGELIB_RUNS", str(place / "runs"))
        notebook = make(place / "02_sft.ipynb", OPEN, *BASE, FINISH, parameters=PARAMETERS)

        def made(number):
            record = execute(notebook, {"profile": "smoke", "steps": number}, threads=1)
            assert record["status"] == "done", record["reason"]
            return Path(record["directory"])

        yield made


@pytest.mark.notebooks
@pytest.mark.timeout(900)
def test_the_notebook_distils_what_base_solved_and_training_starts_from_it(base):
    start = base(200)
    record = execute("05_self_distill", {"profile": "smoke", "seed": 0, "temperature": 0.2}, [start], threads=1)
    assert record["status"] == "done", record["reason"]
    made = Path(record["directory"])
    found = json.loads((made / "results.json").read_text())
    rows = [json.loads(line) for line in (made / "demos.jsonl").read_text().splitlines()]
    episodes = pd.read_csv(made / "episodes.csv", dtype={"task_id": str, "scenario_id": str})
    assert found["played"] == len(episodes) == 2 * 2 * 3 and found["solved"] == episodes["success"].sum() >= 3
    solved = set(episodes.loc[episodes["success"], "task_id"])
    assert {row["task_id"] for row in rows} == solved and found["tasks"] == len(solved) <= len(rows) == found["traces"]
    assert found["warning"].startswith(f"only {len(rows)} own traces") and found["steps"] == steps(len(rows), 1, 4, 0.4)
    assert all(row["prompt"].startswith("Skills:") for row in rows)
    weights = [(d / "model.safetensors").read_bytes() for d in (start / "base", made / "policy")]
    assert weights[0] != weights[1]
    trained = execute("03_train", {"profile": "smoke", "seed": 0, "method": "sage", "init": "self_distilled", "steps": 1},
                      [start, made], threads=1)
    assert trained["status"] == "done", trained["reason"]


@pytest.mark.notebooks
@pytest.mark.timeout(600)
def test_the_notebook_fails_with_one_message_when_base_solves_nothing(base):
    record = execute("05_self_distill", {"profile": "smoke", "seed": 0, "scenarios": 1, "plays": 1, "max_turns": 1}, [base(0)],
                     threads=1)
    assert record["status"] == "failed"
    assert record["reason"].startswith("RuntimeError: the start policy solved none of 3 tasks that it played")
    assert not (Path(record["directory"]) / "policy").exists()
