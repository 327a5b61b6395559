"""Fine-tuning of a pre-trained LLM with a LoRA adapter (PEFT), or of all its weights. The loss sees the agent's replies only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, PrinterCallback, set_seed
from trl import SFTConfig as TRLConfig
from trl import SFTTrainer

from sagelib.chat import LLMFormat
from sagelib.sft import Example, _Log, newest_checkpoint


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
    output_dir: Path,
    batch: int,
    learning_rate: float,
    seed: int,
    bf16: bool,
    save_steps: int = 100,
    log: Callable[..., None] | None = None,
) -> float:
    """One pass over ``examples`` in their order, AdamW, cosine schedule; returns the mean loss of the last tenth.

    Examples have labels of -100 where nothing is learned (`sft.encode_demonstration`). Resumes from the newest checkpoint.
    """
    steps, on_gpu = len(examples) // batch, torch.cuda.is_available()
    if not steps:
        raise ValueError(f"{len(examples)} examples do not fill one batch of {batch}; lower batch_size")
    args = TRLConfig(
        output_dir=str(output_dir),
        use_cpu=not on_gpu,
        bf16=bf16,
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=steps // 20,
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_length=None,
        train_sampling_strategy="sequential",
        logging_steps=max(1, steps // 20),
        report_to=[],
        save_strategy="steps",
        save_steps=save_steps,
        save_total_limit=1,
        seed=seed,
        disable_tqdm=True,
        gradient_checkpointing=on_gpu,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(list(examples)),
        processing_class=format.tokenizer,
        callbacks=[_Log(log)] if log else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=newest_checkpoint(Path(output_dir)))
    model.eval()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)
