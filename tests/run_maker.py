"""A small recorded training run, played by a scripted policy in the fake world: two steps of one chain in three copies.

Copy 1 writes a skill and uses it; copy 2 fails and then replies without code; copy 3 changes the skill after an error.
"""
import json
from pathlib import Path

from fakes import FakeWorld, ReplayPolicy, chain, tiny_format, tiny_tokenizer

from sagelib.credit import CREDIT, chain_returns
from sagelib.play import chain_record, step_metrics
from sagelib.prompts import reply
from sagelib.rollout import RolloutSettings, rollout

WANTED = {"s_1": ["a"], "s_2": ["b"]}
SETTINGS = RolloutSettings(max_turns=3, max_tokens_per_turn=400, max_context=4000)
ADD = "def add(text):\n    apis.notes.add(text=text)\n"
BAD = "def add(text):\n    apis.notes.put(text)\n"
DONE = "apis.supervisor.complete_task()"
HOSTILE = '</script><script>document.body.dataset.owned = "yes"</script><img src=x onerror="document.body.dataset.owned = 1">'
SCRIPT = {
    (0, 0): [reply("I write a skill.", f"{ADD}add('a')\n{DONE}")],
    (0, 1): [reply("Wrong note.", f"apis.notes.add(text={HOSTILE!r})\nprint({HOSTILE!r})"), reply("é", DONE)],
    (0, 2): [reply("I write a skill.", f"{ADD}add('a')\n{DONE}")],
    (1, 0): [reply("I call the skill.", f"# now\nadd('b')\n{DONE}")],
    (1, 1): ["I do not know."],
    (1, 2): [reply("I change it.", f"{BAD}add('b')"), reply("Again.", f"{ADD}    return text\nadd('b')\n{DONE}")],
}
RETURNS = [[2.0, 2.0], [0.0, -1.0], [1.0, 1.0]]


def play():
    """The three copies of the chain, played to their ends."""
    policy = ReplayPolicy(tiny_format(), lambda position, row, turn: SCRIPT[position, row][turn])
    return rollout([chain("s_1", "s_2")], 3, policy, FakeWorld(WANTED), tiny_format(), SETTINGS, seed=1)


def make_run(directory: Path, *, run_id="0123456789", steps=2, tokenizer=True, status="done", method="sage") -> Path:
    """A directory as 03_train leaves it."""
    directory.mkdir(parents=True)
    runs = play()
    returns = [chain_returns(run, CREDIT["skill_integrated"]) for run in runs]
    with open(directory / "episodes.jsonl", "w") as episodes, open(directory / "metrics.jsonl", "w") as metrics:
        for step in range(1, steps + 1):
            episodes.writelines(json.dumps(chain_record(run, R, step)) + "\n" for run, R in zip(runs, returns, strict=True))
            row = {"time": 1000.0 + 12 * step, "kind": "rollout", "step": step, **step_metrics(runs, returns, 3)}
            metrics.write(json.dumps(row) + "\n" + json.dumps({"time": 1001.0, "step": step, "loss": 0.5}) + "\n")
    given = {"profile": "smoke", "seed": 3, "method": method}
    config = given | {"world": "nowhere", "credit": "skill_integrated", "episodes_per_step": 6, "chain_length": 2}
    record = {"run_id": run_id, "notebook": "03_train", "profile": "smoke", "seed": 3, "parameters": given,
              "parameters_seen": config, "inputs": [], "world": {"name": "nowhere", "hash": "abc"},
              "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:00Z", "seconds": 60.0,
              "status": status, "reason": "", "artifacts": {},
              "versions": {"torch": "9.9"}, "git": {"commit": "c0ffee", "dirty": True}}
    progress, results = {"done": steps, "total": 30, "text": "", "left_s": 600.0}, {"steps": steps, "solved_last5": 66.7}
    for name, value in {"run": record, "config": config, "progress": progress, "results": results}.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    if tokenizer:
        tiny_tokenizer().save_pretrained(directory / "policy")
    return directory
