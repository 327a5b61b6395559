"""Fine-tuning of a pre-trained LLM with a LoRA adapter (PEFT), or of all its weights. The loss sees the agent's replies only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, set_seed
from trl import SFTTrainer

from sagelib import sft
from sagelib.chat import LLMFormat
from sagelib.sft import Example


def attach(model: PreTrainedModel | PeftModel, rank: int, alpha: int, seed: int) -> PreTrainedModel | PeftModel:
    """The model with a new adapter on all linear layers but the head, its own weights frozen.

    A new adapter changes nothing (its second matrix is 0). A model that has one keeps it. ``rank`` 0: no adapter, and all
    weights in float32, since steps of 1e-6 are lost in bfloat16.
    """
    if isinstance(model, PeftModel):
        return model
    if rank == 0:
        return model.float()
    set_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config).eval()


def fitting(examples: Sequence[Example], longest: int) -> list[Example]:
    """Those of at most ``longest`` tokens. ValueError when none is left: a cut one would teach to stop half-way."""
    kept = [e for e in examples if len(e["input_ids"]) <= longest]
    if not kept:
        shortest = min((len(e["input_ids"]) for e in examples), default=0)
        raise ValueError(f"none of {len(examples)} demonstrations has at most max_length = {longest} tokens "
                         f"(the shortest has {shortest}); raise max_length")
    return kept


def fine_tune(
    model: PreTrainedModel | PeftModel,
    format: LLMFormat,
    examples: Sequence[Example],
    *,
    batch: int,
    **settings: Any,
) -> float:
    """One pass of `sft.fine_tune` over ``examples`` in their order, with AdamW; returns the mean loss of the last tenth.

    ``settings``: output_dir, learning_rate, seed, bf16 and others of `sft.fine_tune`. A model of billions is recomputed in the
    backward pass on a GPU. ValueError when there is not one whole batch.
    """
    loss = sft.fine_tune(model, format.tokenizer, examples, batch=batch, warmup_steps=len(examples) // batch // 20,
                         weight_decay=0.0, kind=SFTTrainer, gradient_checkpointing=torch.cuda.is_available(), **settings)
    model.eval()
    return loss
