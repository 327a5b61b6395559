"""Trains a tiny model on a fake world, killed at a given point and started again; what tests/test_resume.py compares.

    python tests/resume_worker.py DIRECTORY     # one process imports everything; each training is a fork of it

The training is `play.player` -> `rollout` -> `trainer.train`, as in notebook 03_train. A killed process ends by os._exit:
no `finally`, no flush. Prints one JSON object: for each case its exit codes, metrics rows, episodes and final weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # no thread pools: this process is forked

import torch  # noqa: E402
from fakes import FakeWorld, chain, tiny_format, tiny_model, tiny_tokenizer  # noqa: E402
from transformers import TrainerCallback, TrainerState  # noqa: E402

from sagelib import play as play_module  # noqa: E402
from sagelib import trainer as trainer_module  # noqa: E402
from sagelib.policy import CachedPolicy, Sample  # noqa: E402
from sagelib.runs import Run  # noqa: E402
from sagelib.trainer import ChainGRPOTrainer, StepLog, make_trainer  # noqa: E402

STEPS, SAVE_STEPS, COPIES, KILLED = 5, 2, 4, 9
CHAINS = [chain(f"{s}_1", f"{s}_2") for s in "abcde"]
CONFIG = SimpleNamespace(
    group_size=COPIES, seed=3, credit="skill_integrated", skills=True, steps=STEPS, max_turns=2, max_tokens_per_turn=200,
    max_context=3000, temperature=1.0, detector="strict", observation_chars=160,
)  # fmt: skip


class Writer:
    """Samples six ids from the model and then writes a block whose notes depend on them: what is sampled is rewarded."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.inner, self.format = CachedPolicy(model, frozenset(), 0), tiny_format()

    def start(self, prompts: list[list[int]], seed: int) -> Writer:
        self.session, self.turn = self.inner.start(prompts, seed), 0
        return self

    def extend(self, rows: list[int], chunks: list[list[int]]) -> None:
        self.session.extend(rows, chunks)

    def generate(self, rows: list[int], limit: int) -> list[Sample]:
        kill_at("in a rollout")
        self.turn += 1
        replies = [self._reply(sample) for sample in self.session.generate(rows, 6)]
        self.session.extend(rows, [reply.ids[6:] for reply in replies])
        return replies

    def _reply(self, sample: Sample) -> Sample:
        notes = [name for name, i in zip("ab", sample.ids, strict=False) if i % 2]
        code = "\n".join([f"def add_{self.turn}(x): apis.notes.add(text=x)"] + [f"add_{self.turn}({n!r})" for n in notes])
        done = "\napis.supervisor.complete_task()" if sample.ids[2] % 3 == 0 else ""
        tail = self.format.encode(f"\n```python\n{code}{done}\n```") + [self.format.end_id]
        return Sample(sample.ids + tail, sample.logprobs + [-0.1] * len(tail), "stop")


# ---------------------------------------------------------------- points

POINT: list[Any] = [None, 0]  # where to end, and how many passes of that point to let by


def kill_at(name: str) -> None:
    """End this process here, the way a kill does, if this is the point."""
    if POINT[0] == name:
        POINT[1] -= 1
        if POINT[1] < 0:
            os._exit(KILLED)


def around(owner: Any, name: str, before: str = "", after: str = "", instead: Callable | None = None) -> None:
    """Points before and after a function; `instead` is called in its place just before the end of the process."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if instead and POINT[0] == before and POINT[1] == 0:
            instead(function, *args, **kwargs)
        kill_at(before)
        result = function(*args, **kwargs)
        kill_at(after)
        return result

    setattr(owner, name, wrapped)


def half_a_file(function: Callable, *args: Any, **kwargs: Any) -> None:
    """What a kill leaves of a file that is being written."""
    path = Path(next(a for a in args if isinstance(a, (str, Path))))
    function(*args, **kwargs)
    os.truncate(path, path.stat().st_size // 2)


def half_a_row(function: Callable, run: Run, **metrics: Any) -> None:
    with open(run.dir / "metrics.jsonl", "a") as file:
        file.write(json.dumps(metrics)[:20])


def half_removed(function: Callable, path: str, *args: Any, **kwargs: Any) -> None:
    """What a kill leaves of a directory that is being removed: in any order of its files."""
    for file in sorted(Path(path).iterdir())[::2]:
        file.unlink()


class Optimizer(TrainerCallback):
    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        kill_at("before the optimizer step")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        kill_at("after the optimizer step")

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        kill_at("after a checkpoint")


def set_points() -> None:
    """Every point of CASES, in the real functions."""
    around(FakeWorld, "judge", before="while judging")
    around(ChainGRPOTrainer, "compute_loss", before="before the loss")
    around(StepLog, "on_log", before="before a metrics row", after="between metrics row and checkpoint")
    around(Run, "log", before="in a metrics row", instead=half_a_row)
    around(play_module, "chain_record", before="between metrics row and episodes", after="in the episodes")
    around(ChainGRPOTrainer, "save_model", before="before a checkpoint", after="in a checkpoint, after the weights")
    around(torch, "save", before="in a checkpoint, in a tensor file", instead=half_a_file)
    around(ChainGRPOTrainer, "_save_rng_state", after="in a checkpoint, before its state")
    around(TrainerState, "save_to_json", before="in a checkpoint, in its state", instead=half_a_file)
    around(shutil, "rmtree", before="while the old checkpoint is removed", instead=half_removed)
    around(Run, "rewind", before="before rewinding", after="while rewinding")
    around(trainer_module, "_drop_later_steps", after="after rewinding")


CASES: dict[str, list[tuple[str, int]]] = {  # name -> the kills of its attempts, one after the other
    "in the first rollout": [("in a rollout", 0)],
    "in a rollout's second task": [("in a rollout", 10)],
    "while judging": [("while judging", 5)],
    "between metrics row and episodes": [("between metrics row and episodes", 2 * COPIES)],
    "in the episodes": [("in the episodes", 3 * COPIES + 1)],
    "before the loss": [("before the loss", 3)],
    "before the optimizer step": [("before the optimizer step", 2)],
    "after the optimizer step": [("after the optimizer step", 2)],
    "before a metrics row": [("before a metrics row", 3)],
    "in a metrics row": [("in a metrics row", 5)],
    "between metrics row and checkpoint": [("between metrics row and checkpoint", 3)],
    "in the first checkpoint, after the weights": [("in a checkpoint, after the weights", 0)],
    "in the second checkpoint, after the weights": [("in a checkpoint, after the weights", 1)],
    "in a checkpoint, in a tensor file": [("in a checkpoint, in a tensor file", 4)],
    "in a checkpoint, before its state": [("in a checkpoint, before its state", 1)],
    "in a checkpoint, in its state": [("in a checkpoint, in its state", 1)],
    "while the old checkpoint is removed": [("while the old checkpoint is removed", 0)],
    "after a checkpoint": [("after a checkpoint", 1)],
    "at the last step": [("after the optimizer step", STEPS - 1)],
    "after the last checkpoint": [("after a checkpoint", 2)],
    "twice, while it rewinds": [("after the optimizer step", 3), ("while rewinding", 0)],
    "three times": [("before the loss", 1), ("in a checkpoint, after the weights", 1), ("after rewinding", 0)],
}


# ---------------------------------------------------------------- one training


def train(directory: Path, point: tuple[str, int] | None) -> None:
    """The training of notebook 03_train with small parts; ends at the point. Weights are written at its end."""
    POINT[:] = point or (None, 0)
    run = Run(directory, {"run_id": "x"}, [])
    model = tiny_model(gain=2.0)
    play_module.sampler = lambda cfg, model, format: Writer(model)
    world = FakeWorld({task: ["a", "b"] for c in CHAINS for task in c.task_ids})
    play = play_module.player(CONFIG, model, tiny_format(), world, directory / "episodes.jsonl", run.log, run.progress)
    trainer = make_trainer(
        model, tiny_tokenizer(), CHAINS, play, output_dir=directory / "checkpoints", copies=COPIES, chains_per_step=1,
        credit_name=CONFIG.credit, learning_rate=1e-3, steps=STEPS, weight_decay=0.01, schedule="linear",
        adam_epsilon=1e-6, train_embeddings=False, micro_batches=2, save_steps=SAVE_STEPS, seed=CONFIG.seed, log=run.log,
    )  # fmt: skip
    trainer.add_callback(Optimizer())
    trainer_module.train(trainer, run)
    torch.save(model.state_dict(), directory / "weights.pt")


def forked(directory: Path, point: tuple[str, int] | None) -> int:
    """Exit code of a training in a process of its own: 0 done, KILLED at its point, 1 an exception (in error.txt)."""
    pid = os.fork()
    if pid == 0:
        import traceback

        code = 1
        try:
            train(directory, point)
            code = 0
        except BaseException:
            (directory / "error.txt").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcome(directory: Path) -> dict[str, Any]:
    """What a finished training left; times are not compared."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    weights = torch.load(directory / "weights.pt") if (directory / "weights.pt").exists() else {}
    sha = hashlib.sha256(b"".join(name.encode() + w.numpy().tobytes() for name, w in sorted(weights.items())))
    episodes = (directory / "episodes.jsonl").read_text().splitlines()
    return {
        "rows": [{k: v for k, v in row.items() if k not in ("time", "step_time")} for row in rows],
        "episodes": [hashlib.sha256(_timeless(line).encode()).hexdigest() for line in episodes],
        "weights": sha.hexdigest() if weights else None,
        "error": (directory / "error.txt").read_text()[-1500:] if (directory / "error.txt").exists() else "",
    }


def _timeless(line: str) -> str:
    row = json.loads(line)
    for episode in row["episodes"]:
        for turn in episode["turns"]:
            turn["seconds"] = 0
    return json.dumps(row)


def main(root: Path) -> None:
    """The uninterrupted training first, then every case."""
    set_points()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, points in {"straight": [], **CASES}.items():
        directory, began = root / name.replace(" ", "-"), time.time()
        directory.mkdir(parents=True)
        codes = [forked(directory, point) for point in [*points, None]]
        found[name] = {"codes": codes, **outcome(directory), "seconds": time.time() - began}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
