"""Supervised fine-tuning on demonstrations with TRL's SFTTrainer. The loss sees the agent's replies only.

A from-scratch model learns to copy arguments from short instruction -> code pairs much sooner than from whole traces
(LOG.md), so a stage may start with pairs alone and keep a share of them among the later examples. Pairs have a role of their
own in the template, so that they do not leak into whole episodes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import SFTConfig as TRLConfig
from trl import SFTTrainer

from sagelib.optim import MuonAdamW, has_fast_bf16
from sagelib.prompts import ChatFormat, reply
from sagelib.runs import read_json

IGNORED = -100
Example = dict[str, list[int]]


def encode_pair(format: ChatFormat, pair: dict[str, str]) -> Example:
    """A pair: its text under the role ``pair``, its code (in the form of a reply, if it has a thought) as what is trained.

    Between them, untrained, the look-up that a pair of kind ``after`` has behind it, and what it showed.
    """
    prompt = format.prompt_ids(pair["text"], role="pair")
    if "look_up" in pair:
        prompt += format.encode(reply(pair["look_thought"], pair["look_up"]))
        prompt += format.observation_ids(pair["shown"], closed=False)
    code = reply(pair["thought"], pair["code"]) if "thought" in pair else pair["code"]
    target = format.encode(code) + [format.end_id]
    return {"input_ids": prompt + target, "labels": [IGNORED] * len(prompt) + target}


def is_copying(pair: dict[str, str]) -> bool:
    """Whether the code repeats a value of the text: such pairs teach copying."""
    return pair["kind"] == "call" and any(c in pair["code"] for c in '"0123456789')


def pack(examples: Sequence[Example], size: int) -> list[Example]:
    """``size`` examples in a row make one sequence: as long as an episode, so that batches cost the same."""
    groups = [examples[i : i + size] for i in range(0, len(examples), size)]
    return [{key: [x for e in group for x in e[key]] for key in ("input_ids", "labels")} for group in groups]


def encode_demonstration(format: ChatFormat, row: dict[str, Any]) -> Example:
    """A whole episode, with the same ids as `rollout` would have produced; untrained turns and observations ignored."""
    ids = format.prompt_ids(row["prompt"])
    labels = [IGNORED] * len(ids)
    for i, turn in enumerate(row["turns"]):
        own = format.encode(turn["text"]) + [format.end_id]
        ids, labels = ids + own, labels + (own if turn["trained"] else [IGNORED] * len(own))
        if i + 1 < len(row["turns"]):
            tail = format.observation_ids(turn["observation"], closed=True)
            ids, labels = ids + tail, labels + [IGNORED] * len(tail)
    if all(label == IGNORED for label in labels):
        raise ValueError(f"demonstration of {row.get('task_id')} has no trained token")
    return {"input_ids": ids, "labels": labels}


def schedule(
    pairs: Sequence[Example],
    demos: Sequence[Example],
    *,
    steps: int,
    batch: int,
    pair_steps: int,
    pair_share: float,
    seed: int,
) -> list[Example]:
    """Examples in training order: ``pair_steps`` batches of pairs, then ``pair_share`` of pairs among the examples.

    Inside a window of 8 batches examples are sorted by length (little padding) and the batches are shuffled.
    """
    rng = random.Random(seed)
    order: list[Example] = []
    for first in range(0, steps, 8):
        window: list[Example] = []
        for step in range(first, min(first + 8, steps)):
            wanted = batch if step < pair_steps or not demos else round(batch * pair_share)
            window += rng.choices(pairs, k=wanted) if wanted else []
            window += rng.choices(demos, k=batch - wanted) if wanted < batch else []
        window.sort(key=lambda e: len(e["input_ids"]))
        batches = [window[i : i + batch] for i in range(0, len(window), batch)]
        rng.shuffle(batches)
        order += [example for b in batches for example in b]
    return order


class _Log(TrainerCallback):
    def __init__(self, log: Callable[..., None]) -> None:
        self.log = log

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.log(step=state.global_step, loss=float(logs["loss"]), learning_rate=float(logs["learning_rate"]))


def reporter(run: Any, stage: str, offset: int, total: int) -> Callable[..., None]:
    """A ``log`` for `fine_tune`: rows of this stage in the run's metrics, and its progress out of all stages."""

    def log(step: int, **values: float) -> None:
        run.log(stage=stage, step=offset + step, **values)
        run.progress(offset + step, total, f"{stage} loss {values['loss']:.3f}")

    return log


class FromNothing(SFTTrainer):
    """TRL's trainer with the optimizer of `optim.MuonAdamW`."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        self.optimizer = MuonAdamW(self.model, self.args.learning_rate, self.args.weight_decay)
        return self.optimizer


def newest_checkpoint(directory: Path) -> str | None:
    """The last complete checkpoint (its trainer_state.json is written last); half-written ones are deleted."""
    complete = []
    for path in Path(directory).glob("checkpoint-*"):
        if read_json(path / "trainer_state.json") is not None:
            complete.append(path)
        else:
            shutil.rmtree(path)
    return str(max(complete, key=lambda p: int(p.name.split("-")[1]))) if complete else None


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    order: Sequence[Example],
    *,
    output_dir: Path,
    batch: int,
    learning_rate: float,
    seed: int,
    warmup_steps: int = 50,
    weight_decay: float = 0.01,
    bf16: bool | None = None,
    save_steps: int = 200,
    log: Callable[..., None] | None = None,
    kind: type[SFTTrainer] = FromNothing,
    gradient_checkpointing: bool = False,
) -> float:
    """Train ``model`` in place on ``order`` (already in batches); returns the mean loss of the last tenth.

    ``bf16``: None where this machine is fast at it. ``kind``: the trainer, and with it the optimizer. Resumes from the newest
    checkpoint in ``output_dir``, if there is one. ValueError when there is not one whole batch.
    """
    output_dir = Path(output_dir)
    steps = len(order) // batch
    if not steps:
        raise ValueError(f"{len(order)} examples do not fill one batch of {batch}; lower batch_size")
    args = TRLConfig(
        output_dir=str(output_dir),
        use_cpu=not torch.cuda.is_available(),
        bf16=has_fast_bf16() if bf16 is None else bf16,
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(warmup_steps, steps // 5),
        weight_decay=weight_decay,
        max_grad_norm=1.0,
        max_length=None,
        train_sampling_strategy="sequential",
        logging_steps=max(1, min(20, steps // 10)),
        report_to=[],
        save_strategy="steps",
        save_steps=save_steps,
        save_total_limit=1,
        seed=seed,
        disable_tqdm=True,
        gradient_checkpointing=gradient_checkpointing,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = kind(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(list(order)),
        processing_class=tokenizer,
        callbacks=[_Log(log)] if log else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=newest_checkpoint(output_dir))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return sum(losses[-max(1, len(losses) // 10) :]) / max(1, len(losses) // 10)
