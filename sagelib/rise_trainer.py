"""SkillRise on TRL's GRPOTrainer: rows of both roles in one batch, compared within (sequence, position, role).

A data row is a sequence, repeated G times, as the stock sampler does. What comes back from a rollout is another number of
rows (K solves and K-1 curations a trial, more where a history was shortened), in groups of varying size: so the batch and
its advantages are made here, and the loss, the optimizer and the checkpoints stay TRL's.

Loss: sum_i weight_i mean_t min(s A_i, clip(s, 1-eps, 1+eps) A_i) with the weights of `rise_credit.loss_weights`. The clipped
term is homogeneous in A, so that the weights go into the advantages: TRL's mean over the N rows of a step gets
N weight_i A_i, and micro-batches and parts of like length add up to the same loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback

from sagelib.rise_credit import RiseCredit, advantages, loss_weights
from sagelib.rise_rows import Row, training_rows
from sagelib.rise_types import Trial
from sagelib.trainer import ChainGRPOTrainer, StepLog, chain_dataset, check_count, grpo_config
from sagelib.types import Chain

PlayTrials = Callable[[list[Chain], int], list[Trial]]  # (sequences of the step, step) -> S*G trials


def row_advantages(rows: Sequence[Row], credit: RiseCredit, count: int) -> list[float]:
    """What TRL's mean over ``count`` rows must be given for the loss above."""
    scores = [row.score for row in rows]
    return [count * w * a for w, a in zip(loss_weights(scores, credit), advantages(scores, credit), strict=True)]


def batch_of(rows: Sequence[Row], credit: RiseCredit, pad_id: int, multiple: int = 1) -> dict[str, torch.Tensor]:
    """The step as TRL's tensors: prompts padded left, completions right, ``tool_mask`` 1 on sampled tokens.

    Filled up to a ``multiple`` of rows with rows of one unsampled token, which have advantage 0.
    """
    if not rows:
        raise RuntimeError("no row of this step was scored and sampled; see the world's log")
    count = -(-len(rows) // multiple) * multiple
    blank = count - len(rows)
    prompts = [row.segment.prompt_ids for row in rows] + [[pad_id]] * blank
    completions = [row.segment.completion_ids for row in rows] + [[pad_id]] * blank
    own = [row.segment.own_mask_T for row in rows] + [[0]] * blank
    prompt_ids, prompt_mask = _padded(prompts, pad_id, left=True)
    completion_ids, completion_mask = _padded(completions, pad_id, left=False)
    own_mask, _ = _padded(own, 0, left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": own_mask,
        "advantages": torch.tensor(row_advantages(rows, credit, count) + [0.0] * blank, dtype=torch.float32),
        "num_items_in_batch": (completion_mask * own_mask).sum(),
    }


def _padded(lists: Sequence[list[int]], value: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) of the lists, and its mask."""
    width = max(map(len, lists))
    ids_BT = torch.full((len(lists), width), value)
    mask_BT = torch.zeros(len(lists), width, dtype=torch.long)
    for i, ids in enumerate(lists):
        columns = slice(width - len(ids), width) if left else slice(0, len(ids))
        ids_BT[i, columns], mask_BT[i, columns] = torch.tensor(ids, dtype=torch.long), 1
    return ids_BT, mask_BT


class RiseTrainer(ChainGRPOTrainer):
    """ChainGRPOTrainer whose rows and advantages come from trials; everything after that is inherited."""

    def __init__(self, *args: Any, play: PlayTrials, rise_credit: RiseCredit, **kwargs: Any) -> None:
        self.play, self.rise_credit = play, rise_credit
        super().__init__(*args, chain_length=1, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        names = [json.loads(row["prompt"]) for row in inputs[:: self.num_generations]]
        chains = [Chain(name["scenario_id"], tuple(name["task_ids"])) for name in names]
        was_training = self.model.training
        self.model.eval()
        rows = training_rows(self.play(chains, self.state.global_step), self.rise_credit)
        self.model.train(was_training)
        batch = batch_of(rows, self.rise_credit, self.processing_class.pad_token_id, self.args.steps_per_generation)
        values = [row.score.value for row in rows if row.score.value is not None]
        self._metrics["train"]["reward"].append(fmean(values) if values else float("nan"))
        return {name: value.to(self.accelerator.device) for name, value in batch.items()}


def make_rise_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chains: Sequence[Chain],
    play: PlayTrials,
    credit: RiseCredit,
    *,
    copies: int,
    sequences_per_step: int,
    steps: int,
    weight_decay: float = 0.01,
    log: Callable[..., None] | None = None,
    **settings: Any,
) -> RiseTrainer:
    """A trainer for ``steps`` optimizer steps of ``sequences_per_step`` sequences x ``copies`` trials; `trainer.train` runs it.

    ``chains`` must hold steps*sequences_per_step rows, no sequence twice in a step (it would be one group). One optimizer
    step per rollout. (The released code takes many steps of 128 rows per rollout.) ``settings``: of `trainer.grpo_config`.
    """
    check_count(chains, steps, sequences_per_step, "sequences")
    for first in range(0, len(chains), sequences_per_step):
        names = [chain.scenario_id for chain in chains[first : first + sequences_per_step]]
        if len(set(names)) < len(names):
            raise ValueError(f"step {first // sequences_per_step + 1} plays a sequence twice: {sorted(names)}")
    args = grpo_config(
        model, copies=copies, per_step=sequences_per_step * copies, steps=steps, weight_decay=weight_decay, unit="trials",
        **settings,
    )
    trainer = RiseTrainer(
        model=model,
        reward_funcs=_unused_reward,
        args=args,
        train_dataset=chain_dataset(chains),
        processing_class=tokenizer,
        play=play,
        rise_credit=credit,
        callbacks=[StepLog(log)] if log else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _unused_reward(**_: Any) -> list[float]:
    """TRL insists on a reward function; ours needs the whole trial and is `rise_credit`."""
    raise AssertionError("the returns of SkillRise are computed from whole trials")
