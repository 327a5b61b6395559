"""One process of a training run: `process_worker.py OUT` with RANK, WORLD_SIZE, ... as torchrun sets them (test_processes.py)."""
import sys
from pathlib import Path

import torch
from fakes import chain, tiny_model, tiny_tokenizer
from test_trainer import made_runs

from sagelib.trainer import make_trainer

CHAINS = [chain("s_1", "s_2"), chain("t_1", "t_2"), chain("u_1", "u_2"), chain("v_1", "v_2")]
FRACTIONS = [[[1, 0.5], [1, 0]], [[0.1, 0.7], [0.3, 0.3]], [[0, 1], [0.25, 0.5]], [[0.6, 0.5], [0, 1]]]
STEPS = 2


def train(out: Path, micro_batches: int = 1) -> dict:
    """Losses of the steps, the weights, and the chains that this process played; the runs are the same everywhere."""
    runs = {run.chain.scenario_id: [] for run in made_runs(CHAINS, FRACTIONS)}
    for run in made_runs(CHAINS, FRACTIONS):
        runs[run.chain.scenario_id].append(run)
    played, logged, model = [], [], tiny_model(gain=2.0)

    def play(chains, step):
        played.append([c.scenario_id for c in chains])
        return [run for c in chains for run in runs[c.scenario_id]]

    trainer = make_trainer(model, tiny_tokenizer(), CHAINS * STEPS, play, output_dir=out / "c", copies=2, chains_per_step=4,
                           credit_name="outcome", steps=STEPS, learning_rate=1e-3, bf16=False, adam_epsilon=1e-4,
                           micro_batches=micro_batches, log=lambda **row: logged.append(row))
    trainer.train()
    trained = trainer.accelerator.unwrap_model(trainer.model)
    return {"losses": [row["loss"] for row in logged], "norms": [row["grad_norm"] for row in logged], "played": played,
            "rewards": [row["reward"] for row in logged],
            "weights": {name: p.detach().clone() for name, p in trained.named_parameters()}}


if __name__ == "__main__":
    import os

    out = Path(sys.argv[1])
    torch.save(train(out), out / f"rank{os.environ['RANK']}.pt")
