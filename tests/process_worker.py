"""One process of a training run: `process_worker.py OUT [DEATH]` with RANK, WORLD_SIZE, ... as torchrun sets them.

DEATH is the step (from 0) in the middle of which rank 1 kills itself, as a machine that is lost. Run by test_processes.py.
"""
import os
import signal
import sys
from pathlib import Path

import torch
from fakes import chain, tiny_model, tiny_tokenizer
from test_trainer import made_runs

from sagelib.trainer import make_trainer
from sagelib.trainer import train as train_run

CHAINS = [chain("s_1", "s_2"), chain("t_1", "t_2"), chain("u_1", "u_2"), chain("v_1", "v_2")]
FRACTIONS = [[[1, 0.5], [1, 0]], [[0.1, 0.7], [0.3, 0.3]], [[0, 1], [0.25, 0.5]], [[0.6, 0.5], [0, 1]]]
STEPS = 2
RANK = int(os.environ.get("RANK", "0"))


class Run:
    """What `trainer.train` needs of a run record; ``rewound``: the step from which it went on."""

    def __init__(self, directory: Path) -> None:
        self.dir, self.rewound = directory, None

    def rewind(self, step: int) -> None:
        self.rewound = step


def train(out: Path, death: int | None = None) -> dict:
    """Losses of the steps, the weights, and the chains that this process played; the runs are the same everywhere.

    Goes on from the newest checkpoint in ``out``, which all processes share.
    """
    runs = {run.chain.scenario_id: [] for run in made_runs(CHAINS, FRACTIONS)}
    for run in made_runs(CHAINS, FRACTIONS):
        runs[run.chain.scenario_id].append(run)
    played, logged, model = [], [], tiny_model(gain=2.0)

    def play(chains, step):
        if step == death and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        played.append([c.scenario_id for c in chains])
        return [run for c in chains for run in runs[c.scenario_id]]

    trainer = make_trainer(model, tiny_tokenizer(), CHAINS * STEPS, play, output_dir=out / "c", copies=2, chains_per_step=4,
                           credit_name="outcome", steps=STEPS, learning_rate=1e-3, bf16=False, adam_epsilon=1e-4,
                           save_steps=1, log=lambda **row: logged.append(row))
    run = Run(out)
    train_run(trainer, run)
    trained = trainer.accelerator.unwrap_model(trainer.model)
    return {"losses": [row["loss"] for row in logged], "norms": [row["grad_norm"] for row in logged], "played": played,
            "rewards": [row["reward"] for row in logged], "from": run.rewound,
            "weights": {name: p.detach().clone() for name, p in trained.named_parameters()}}


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    torch.save(train(directory, *map(int, sys.argv[2:])), directory / f"rank{RANK}.pt")
