"""What a rollout and a gradient step cost in the trainer's process, beside the plain way of doing each.

    .venvs/main/bin/python benchmarks/policy_cost.py --policy runs/laptop/02_sft-ID/sft --csv cost.csv

One thread, CPU time of this process (the engine's processes are in `engine_cost.py`). One step of 64 episodes is really
played with the given policy, three ways: as the product does; with ``generate`` of transformers, which reads the whole
episode again at each turn; and the model alone, decoding as many tokens for as many rows without ever stopping. Then the same
step is trained as the product does, and with TRL's own loss on the whole padded batch; both losses must be equal.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from engine_cost import write_csv

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from trl import GRPOTrainer  # noqa: E402

from sagelib import chaining, datasets, tiny  # noqa: E402
from sagelib.appworld import EnginePool  # noqa: E402
from sagelib.config import TrainConfig  # noqa: E402
from sagelib.play import sampler, settings  # noqa: E402
from sagelib.policy import CachedPolicy, Sample, WholeSequences  # noqa: E402
from sagelib.prompts import ChatFormat  # noqa: E402
from sagelib.rollout import rollout  # noqa: E402
from sagelib.trainer import ChainGRPOTrainer, make_trainer  # noqa: E402


class PlainPolicy:
    """`Policy` by transformers' ``generate``: no cache outlives a turn, every turn reads its episode from the start."""

    def __init__(self, policy: CachedPolicy) -> None:
        self.policy = policy

    def start(self, prompts: Sequence[list[int]], seed: int) -> "PlainSession":
        torch.manual_seed(seed)
        return PlainSession(self.policy, prompts)


class PlainSession(WholeSequences):
    def __init__(self, policy: CachedPolicy, sequences: Sequence[list[int]]) -> None:
        super().__init__(sequences)
        self.policy = policy

    @torch.no_grad()
    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        pad, [end] = self.policy.pad_id, self.policy.end_ids
        width = max(len(self.sequences[row]) for row in rows)
        ids = torch.tensor([[pad] * (width - len(self.sequences[row])) + self.sequences[row] for row in rows])
        mask = torch.tensor([[int(i >= width - len(self.sequences[row])) for i in range(width)] for row in rows])
        out = self.policy.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=True,
            temperature=self.policy.temperature, top_k=0, top_p=1.0, pad_token_id=pad, eos_token_id=end,
        )
        samples = []
        for row, new in zip(rows, out[:, width:].tolist(), strict=True):
            new = new[: new.index(end) + 1] if end in new else new[:max_new_tokens]
            self.sequences[row] += new
            samples.append(Sample(new, [0.0] * len(new), "stop" if new[-1] == end else "length"))
        return samples


class StockLossTrainer(ChainGRPOTrainer):
    """TRL's loss on the whole batch, padded to its longest sequence."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.chain_length * GRPOTrainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)


def play_step(cfg: TrainConfig, policy, format: ChatFormat, chains: list) -> tuple[list, float]:
    """(runs, CPU seconds of this process) of one step."""
    with EnginePool(datasets.world_dir(cfg.world), parallel=cfg.parallel) as pool:
        begun = time.process_time()
        runs = rollout(chains, cfg.group_size, policy, pool, format, settings(cfg, cfg.skills), seed=0)
        return runs, time.process_time() - begun


def bare_decode(model, tokenizer, runs: list) -> float:
    """Sampled tokens per CPU second of the model alone: one prompt each, the cache, no row ever ends."""
    episodes = [e for run in runs for e in run.episodes if e.position == 0]
    length = round(sum(e.segment.generated for e in episodes) / len(episodes))
    policy = CachedPolicy(model, frozenset(), tokenizer.pad_token_id)
    begun = time.process_time()
    samples = policy.start([e.segment.prompt_ids for e in episodes], 0).generate(range(len(episodes)), length)
    return sum(len(s.ids) for s in samples) / (time.process_time() - begun)


def train_step(cfg: TrainConfig, stock: bool, source: Path, chains: list, runs: list) -> tuple[float, float]:
    """(loss, CPU seconds) of one gradient step on the given runs; playing costs nothing."""
    model, tokenizer = tiny.load_policy(source)
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(
            model, tokenizer, chains, lambda c, s: runs, output_dir=Path(scratch), copies=cfg.group_size,
            chains_per_step=cfg.chains_per_step, credit_name=cfg.credit, learning_rate=1e-5, steps=1, bf16=False,
            micro_batches=cfg.micro_batches, log=lambda **row: losses.append(row["loss"]),
        )
        trainer.__class__ = StockLossTrainer if stock else ChainGRPOTrainer
        begun = time.process_time()
        trainer.train()
        return losses[0], time.process_time() - begun


def matmul_rate() -> float:
    """Floating-point operations per CPU second of a large float32 product."""
    a, b = torch.randn(2, 1024, 1024)
    begun, count = time.process_time(), 0
    while time.process_time() - begun < 2:
        a @ b
        count += 1
    return 2 * 1024**3 * count / (time.process_time() - begun)


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg = TrainConfig.from_parameters("laptop", method="sage")
    model, tokenizer = tiny.load_policy(args.policy)
    format = ChatFormat(tokenizer)
    scenarios, _ = datasets.load_dataset(cfg.world, "train")
    chains = chaining.training_chains(scenarios, cfg.chain_length, cfg.chains_per_step, 0)
    policy = sampler(cfg, model, format)

    def rate(way) -> tuple[float, list]:
        runs, seconds = play_step(cfg, way, format, chains)
        return sum(e.segment.generated for run in runs for e in run.episodes) / seconds, runs

    rate(policy)  # the first use of everything is not counted
    (ours, runs), (plain, _) = rate(policy), rate(PlainPolicy(policy))
    bare = bare_decode(model, tokenizer, runs)
    (loss, seconds), (stock_loss, stock_seconds) = (train_step(cfg, s, args.policy, chains, runs) for s in (False, True))
    if abs(loss - stock_loss) > 1e-5 * max(1.0, abs(stock_loss)):
        sys.exit(f"the losses differ: {loss} and {stock_loss}")
    tokens = sum(len(e.segment.ids) for run in runs for e in run.episodes)
    flops = 6 * model.num_parameters() * tokens / seconds
    command = f"benchmarks/policy_cost.py --policy {args.policy}"
    rows = [
        {"name": name, "ratio": round(a / b, 2), "measured": round(a, digits), "against": round(b, digits), "command": command}
        for name, a, b, digits in (
            ("rollout_vs_plain", ours, plain, 0),
            ("rollout_vs_bare_decode", ours, bare, 0),
            ("train_vs_plain_trl", tokens / seconds, tokens / stock_seconds, 0),
            ("train_vs_bare_matmul", flops / 1e9, matmul_rate() / 1e9, 1),
        )
    ]
    for row in rows:
        print("  ".join(f"{v!s:>24}" for v in row.values()))
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
