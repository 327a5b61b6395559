"""SAGE on TRL's GRPOTrainer. A data row is a chain; TRL sees K*G sequences of it, position-major.

TRL computes ``A = R - mean`` over blocks of G adjacent sequences: with this order a block is one (chain, position).
Loss (paper): (1/G) sum_i sum_k (1/|o|) sum_t min(s A, clip(s, 1-eps, 1+eps) A), averaged over the chains of a step.
TRL's ``loss_type="grpo"`` is the mean over all C*K*G sequences of the per-sequence token mean: K times too small, so
`ChainGRPOTrainer.compute_loss` multiplies by K. Everything else is stock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from sagelib import credit, importance, mismatch, splits
from sagelib.optim import has_fast_bf16
from sagelib.sft import newest_checkpoint
from sagelib.types import Chain, ChainRun, Episode, Segment

RolloutOfStep = Callable[[list[Chain], int], list[ChainRun]]  # (chains of the step, step) -> C*G runs


def position_major(runs: Sequence[ChainRun], copies: int) -> list[tuple[ChainRun, Episode]]:
    """[c0k0g0 .. c0k0gG, c0k1g0 .., c1k0g0 ..]: groups of one (chain, position) are adjacent."""
    order = []
    for start in range(0, len(runs), copies):
        group = runs[start : start + copies]
        for k in range(len(group[0].episodes)):
            order += [(run, run.episodes[k]) for run in group]
    return order


def training_sequence(episode: Episode, pad_id: int) -> Segment:
    """The episode's segment; TRL refuses empty completions, so an unsampled one is a single masked token."""
    if episode.segment.completion_ids:
        return episode.segment
    return Segment(episode.segment.prompt_ids, [pad_id], [0], [0.0], episode.position)


def pack(
    runs: Sequence[ChainRun], copies: int, credit_function: credit.CreditFunction, pad_id: int, with_logprobs: bool = False
) -> dict[str, list]:
    """What TRL's ``rollout_func`` must return. Unscored members carry None and leave their group's mean.

    ``with_logprobs``: the sampler's, too, for `importance`; without them TRL takes the trainer's own (ratio exactly 1).
    """
    returns = {id(run): credit.chain_returns(run, credit_function) for run in runs}
    ordered = position_major(runs, copies)
    segments = [training_sequence(episode, pad_id) for _, episode in ordered]
    return {
        "prompt_ids": [s.prompt_ids for s in segments],
        "completion_ids": [s.completion_ids for s in segments],
        "env_mask": [
            s.own_mask_T if e.scored else [0] * len(s.own_mask_T) for s, (_, e) in zip(segments, ordered, strict=True)
        ],
        "logprobs": [s.logprobs_T for s in segments] if with_logprobs else None,
        "chain_return": [returns[id(run)][episode.position] for run, episode in ordered],
    }


def reward_from_rollout(
    prompts: list, completions: list, chain_return: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: the returns were computed with the whole chain in view."""
    return chain_return


PART = 16  # rows of a part; the loss is a mean over rows, so that parts add up exactly


def trimmed_parts(inputs: dict[str, Any], rows: int, keep_all: bool = False) -> list[dict[str, Any]]:
    """The batch in parts of ``rows`` sequences, sorted by length, without the columns that are padding in a whole part.

    Sequences with advantage 0 are left out: their loss and gradient are exactly 0. (One is kept where all are.)
    ``keep_all``: none is, for TRL gathers its metrics over all processes: these need equally many parts of equal size.
    """
    total = inputs["prompt_ids"].shape[0]
    order = (inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)).argsort()
    teaching = order[inputs["advantages"][order] != 0]
    order = order if keep_all else teaching if len(teaching) else order[:1]
    parts = []
    for index in order.split(rows):
        part = {
            name: value[index] if isinstance(value, torch.Tensor) and value.shape[:1] == (total,) else value
            for name, value in inputs.items()
        }
        prompt, completion = (int(part[f"{name}_mask"].sum(1).max()) for name in ("prompt", "completion"))
        for name, value in part.items():
            if name in ("prompt_ids", "prompt_mask"):
                part[name] = value[:, value.shape[1] - prompt :]
            elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape == inputs["completion_ids"][index].shape:
                part[name] = value[:, :completion]
        parts.append(part)
    return parts


class ChainGRPOTrainer(GRPOTrainer):
    """Stock GRPOTrainer whose sampler repeats a chain K*G times, and whose loss is the paper's (sum over positions)."""

    earlier: Sequence[Sequence[Segment]] = ()  # of this step's rows: sequences of an LLM that ended before the episode did

    def __init__(
        self, *args: Any, chain_length: int, importance_sampling: str = "none", importance_cap: float = 3.0, **kwargs: Any
    ) -> None:
        importance.check(importance_sampling, importance_cap)
        self.chain_length, self.importance_sampling, self.importance_cap = chain_length, importance_sampling, importance_cap
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        repeats, size = self.chain_length * self.num_generations, self.args.generation_batch_size
        if size % (repeats * self.args.world_size):
            over = f" over {self.args.world_size} processes" if self.args.world_size > 1 else ""
            raise ValueError(f"a step of {size} sequences{over} does not hold whole chains of K*G = {repeats} sequences")
        return RepeatSampler(
            self.train_dataset if dataset is None else dataset,
            mini_repeat_count=repeats,
            batch_size=size // repeats,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=False,
            seed=self.args.seed,
        )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Stock, and advantages of equal returns are exactly 0: the float mean of 3 x 5/7 is an ulp off, and Adam would
        turn that gradient of 1e-8 into a step of full size."""
        output = super()._generate_and_score_completions(inputs)
        output["advantages"][output["advantages"].abs() < 1e-6] = 0.0
        more = torch.tensor(sum(map(len, self.earlier)), device=self.accelerator.device)
        return splits.with_earlier(output, self.earlier, self.processing_class.pad_token_id, self.args.steps_per_generation,
                                   least=int(self.accelerator.gather(more).max()))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The paper's loss, a mean over all rows. Rows of like length go through the model together: else most is padding."""
        total = inputs["prompt_ids"].shape[0]
        parts = trimmed_parts(inputs, PART, keep_all=self.args.world_size > 1)
        if self.importance_sampling != "none":
            parts = self._weighted(model, parts)
        losses = [super(ChainGRPOTrainer, self).compute_loss(model, part, return_outputs, num_items_in_batch) for part in parts]
        shares = [part["prompt_ids"].shape[0] / total for part in parts]
        return self.chain_length * sum(share * loss for share, loss in zip(shares, losses, strict=True))

    @torch.no_grad()
    def _weighted(self, model: Any, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parts with advantages per token, times the token's importance weight; costs one more forward pass.

        The clipped term is homogeneous in the advantage, so that this multiplies the loss. Logs over all own tokens of the
        parts the mean weight and the share of those that the cap changed.
        """
        weighted, own_weights = [], []
        for part in parts:
            own_BT = part["completion_mask"] * part.get("tool_mask", 1)
            ids, mask = (torch.cat([part[f"prompt_{name}"], part[f"completion_{name}"]], 1) for name in ("ids", "mask"))
            trained_BT = self._get_per_token_logps_and_entropies(model, ids, mask, part["completion_ids"].shape[1])[0]
            given = (trained_BT, part["sampling_per_token_logps"], own_BT, self.importance_sampling)
            weight_BT = importance.weights(*given, self.importance_cap)
            capped_BT = weight_BT != importance.weights(*given, float("inf"))
            own_weights.append(torch.stack([weight_BT, capped_BT.to(weight_BT)])[:, own_BT.bool()])
            weighted.append(part | {"advantages": part["advantages"][:, None] * weight_BT})
        for name, value in zip(("importance_mean", "importance_capped"), torch.cat(own_weights, 1).mean(1), strict=True):
            self._metrics["train"][name].append(float(value.nan_to_num()))
        return weighted


LOGGED = ("loss", "grad_norm", "reward", "entropy", "step_time", "mismatch_max", "mismatch_mean", "mismatch_kl", "ratio_max",
          "importance_mean", "importance_capped")


class StepLog(TrainerCallback):
    """Hands each optimizer step's TRL metrics to ``log`` (`LOGGED`: loss, gradient norm, mean return, ...)."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.log = log

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            keep = {k: float(logs[k]) for k in LOGGED if k in logs}
            self.log(step=state.global_step, **keep)


def chain_dataset(chains: Sequence[Chain]) -> Dataset:
    """One row per chain, in the order in which the steps consume them; the prompt column carries the chain as JSON."""
    return Dataset.from_list(
        [{"prompt": json.dumps({"scenario_id": c.scenario_id, "task_ids": c.task_ids})} for c in chains]
    )


def rollout_function(
    play: RolloutOfStep, chain_length: int, copies: int, credit_function: credit.CreditFunction, pad_id: int,
    agreement_rows: int = 0,
) -> Callable[[list[str], GRPOTrainer], dict[str, list]]:
    """What TRL calls at each step: its prompts (chains as JSON, each K*G times) -> packed sequences and returns.

    On ``agreement_rows`` sequences of each step the trainer's log-probabilities are compared with the sampler's.
    """

    def rollout_func(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
        rows = [json.loads(p) for p in prompts[:: chain_length * copies]]
        chains = [Chain(r["scenario_id"], tuple(r["task_ids"])) for r in rows]
        was_training = trainer.model.training
        trainer.model.eval()
        runs = play(chains, trainer.state.global_step)
        compared = [run.episodes[-1].segment for run in runs[:agreement_rows]]
        for name, value in (mismatch.measure(trainer.model, compared, trainer.args.temperature) or {}).items():
            trainer._metrics["train"][name].append(value)
        trainer.model.train(was_training)
        trainer.earlier = splits.earlier_sequences([episode for _, episode in position_major(runs, copies)])
        return pack(runs, copies, credit_function, pad_id, with_logprobs=trainer.importance_sampling != "none")

    return rollout_func


def grpo_config(
    model: PreTrainedModel,
    *,
    output_dir: Path,
    copies: int,
    per_step: int,
    learning_rate: float,
    steps: int,
    clip_eps: float = 0.2,
    grad_clip: float = 1.0,
    weight_decay: float = 0.0,
    temperature: float = 1.0,
    micro_batches: int = 1,
    save_steps: int = 10,
    seed: int = 0,
    bf16: bool | None = None,
    schedule: str = "constant",
    adam_epsilon: float = 1e-8,
    train_embeddings: bool = True,
    unit: str = "sequences",
) -> GRPOConfig:
    """TRL's settings for ``steps`` optimizer steps of ``per_step`` sequences: strictly on-policy, no KL, no std.

    ``per_step`` counts the sequences of all processes together (WORLD_SIZE, set by torchrun and accelerate). ``bf16``: None
    where this machine is fast at it. ``train_embeddings`` is set on the model. ValueError for ``micro_batches`` that do not
    divide a process's share of a step; ``unit`` is what its message calls the sequences.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if per_step % (micro_batches * processes):
        share = f", shared by {processes} processes" if processes > 1 else ""
        raise ValueError(f"micro_batches {micro_batches} does not divide the {per_step} {unit} of a step{share}")
    model.get_input_embeddings().weight.requires_grad_(train_embeddings)
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output_dir),
        use_cpu=not on_gpu,
        bf16=has_fast_bf16() if bf16 is None else bf16,
        gradient_checkpointing=on_gpu,
        per_device_train_batch_size=per_step // (micro_batches * processes),
        gradient_accumulation_steps=micro_batches,
        num_generations=copies,
        max_completion_length=None,
        max_steps=steps,
        learning_rate=learning_rate,
        lr_scheduler_type=schedule,
        adam_epsilon=adam_epsilon,
        weight_decay=weight_decay,
        max_grad_norm=grad_clip,
        beta=0.0,
        epsilon=clip_eps,
        scale_rewards="none",
        loss_type="grpo",
        temperature=temperature,
        disable_dropout=True,
        shuffle_dataset=False,
        logging_steps=1,
        report_to=[],
        save_strategy="steps",
        save_steps=save_steps,
        save_total_limit=1,
        seed=seed,
        disable_tqdm=True,
    )


def check_count(chains: Sequence[Chain], steps: int, per_step: int, what: str = "chains") -> None:
    """ValueError unless there is exactly one chain for each place of each step; ``what`` they are called."""
    if len(chains) != steps * per_step:
        raise ValueError(f"{len(chains)} {what} given, {steps} steps of {per_step} need {steps * per_step}")


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chains: Sequence[Chain],
    play: RolloutOfStep,
    *,
    copies: int,
    chains_per_step: int,
    credit_name: str,
    steps: int,
    log: Callable[..., None] | None = None,
    agreement_rows: int = 0,
    importance_sampling: str = "none",
    importance_cap: float = 3.0,
    **settings: Any,
) -> ChainGRPOTrainer:
    """A trainer for ``steps`` optimizer steps of ``chains_per_step`` chains x K tasks x ``copies`` copies each.

    ``chains`` must hold steps*chains_per_step rows. ``importance_sampling``: a mode of `importance`, which corrects for a
    sampler whose probabilities are not the trainer's. ``settings``: of `grpo_config`.
    """
    lengths = {len(chain.task_ids) for chain in chains}
    if len(lengths) != 1:
        raise ValueError(f"chains of one run must have equal length, got lengths {sorted(lengths)}")
    K = lengths.pop()
    args = grpo_config(model, copies=copies, per_step=chains_per_step * K * copies, steps=steps, **settings)
    check_count(chains, steps, chains_per_step)
    trainer = ChainGRPOTrainer(
        model=model,
        reward_funcs=reward_from_rollout,
        args=args,
        train_dataset=chain_dataset(chains),
        processing_class=tokenizer,
        rollout_func=rollout_function(play, K, copies, credit.CREDIT[credit_name], tokenizer.pad_token_id,
                                      agreement_rows),
        chain_length=K,
        importance_sampling=importance_sampling,
        importance_cap=importance_cap,
        callbacks=[StepLog(log)] if log else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(trainer: ChainGRPOTrainer, run: Any) -> None:
    """Train to the planned number of steps, from the newest checkpoint if there is one.

    Rows of ``run``'s metrics and episodes that belong to steps after that checkpoint are dropped first.
    """
    checkpoint = newest_checkpoint(Path(trainer.args.output_dir))
    done = int(checkpoint.rsplit("-", 1)[1]) if checkpoint else 0
    run.rewind(done)
    _drop_later_steps(run.dir / "episodes.jsonl", done)
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.state.global_step != trainer.args.max_steps:
        raise RuntimeError(f"training stopped after {trainer.state.global_step} of {trainer.args.max_steps} steps")


def _drop_later_steps(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n") and json.loads(line)["step"] <= step:
            kept.append(line)
    whole = path.with_name(path.name + ".new")  # a kill in between loses nothing
    whole.write_text("".join(kept))
    whole.replace(path)
