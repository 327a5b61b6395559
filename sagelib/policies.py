"""Policies on disk, of both kinds: the laptop's own small model, and a pre-trained LLM with its adapter and its prompt.

A directory of the second kind has prompt.json (base model, rules, worked demonstration, end tokens) and either an adapter
(adapter_config.json), whole weights (config.json), or neither: then the policy is the base model itself.
"""

from __future__ import annotations

import json
from pathlib import Path

from peft import PeftModel
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from sagelib import pretrained, tiny
from sagelib.chat import LLMFormat
from sagelib.profiles import START
from sagelib.prompts import ChatFormat
from sagelib.runs import Run, read_json, write_json


def save(directory: Path, model: PreTrainedModel | PeftModel | None, format: ChatFormat) -> Path:
    """Write what `load` reads. ``model``: None for an LLM that is its base model unchanged (no weights are written)."""
    directory = Path(directory)
    if not isinstance(format, LLMFormat):
        return tiny.save_policy(directory, model, format.tokenizer)
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(model, PeftModel):
        for config in model.peft_config.values():
            config.base_model_name_or_path = format.base   # not the directory where this machine has it
    if model is not None:
        model.save_pretrained(directory)
    format.tokenizer.save_pretrained(directory)
    write_json(directory / "prompt.json", {
        "base": format.base, "rules": format.rules, "demo": format.demo, "keep_history": format.keep_history,
        "end_ids": sorted(format.end_ids)})
    return directory


def load(directory: Path) -> tuple[PreTrainedModel | PeftModel, ChatFormat]:
    """The model in evaluation mode and its format. An adapter is loaded trainable, beside its frozen base model.

    FileNotFoundError when there is no policy, or when its base model is not on this machine.
    """
    directory = Path(directory)
    prompt = read_json(directory / "prompt.json")
    if prompt is None:
        model, tokenizer = tiny.load_policy(directory)
        return model, ChatFormat(tokenizer)
    own = (directory / "config.json").exists()
    model, _ = pretrained.load(str(directory) if own else prompt["base"])
    if (directory / "adapter_config.json").exists():
        model = PeftModel.from_pretrained(model, directory, is_trainable=True).eval()
    kind = PreTrainedTokenizerFast if prompt["base"] == "smollm" else AutoTokenizer
    settings = {key: prompt[key] for key in ("base", "rules", "demo", "keep_history", "end_ids")}
    return model, LLMFormat(kind.from_pretrained(directory), **settings)


def start(run: Run, profile: str, init: str) -> Path:
    """Where the policy lies from which a run of 03_train starts: among its inputs (SAGE, table on the initialization).

    RunError when the input is not there, e.g. init = "rl_warm_up" without an earlier training run as input.
    """
    if init == "rl_warm_up":
        return run.input("03_train", method="sft_grpo") / "policy"
    if init == "self_distilled":
        return run.input("05_self_distill") / "policy"
    return run.input(START[profile]) / init


def describe(directory: Path) -> str:
    """What lies in a policy's directory, in a few words."""
    prompt = read_json(Path(directory) / "prompt.json")
    if prompt is None:
        return "a model of its own"
    adapter = read_json(Path(directory) / "adapter_config.json")
    return f"{prompt['base']} + LoRA of rank {adapter['r']}" if adapter else json.dumps(prompt["base"])[1:-1]
