"""The laptop's policy: a Qwen2-style decoder of 2-5 million parameters and its own byte-level BPE, both made here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# How text is cut before byte pairs are merged. Inside a line code may merge across spaces and punctuation: boilerplate
# becomes a few tokens, so that a step of the model is spent on a decision. What has to be copied always looks the same:
# digits and capitalised words stand alone, what stands in quotes is a piece of its own, identifiers are cut at "_".
WORDS = Regex(
    r'\n *[^\n\dA-Z_" ]*[^\n\dA-Z_"]*"?|\d|[A-Z][a-z]*|(?<=")[a-z.][^"\nA-Z\d]*(?=")|_[a-z]+|"[^\n\dA-Z_"]*"?|[^\n\dA-Z_"]+"?|_+'
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-level BPE (no unknown token) with a ChatML template, trained on ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1]],
        chat_template=CHATML,
        padding_side="left",
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    width: int = 192,
    layers: int = 6,
    heads: int = 3,
    context: int = 2048,
    seed: int = 0,
) -> Qwen2ForCausalLM:
    """A randomly initialised decoder; equal seeds give equal weights. ``width`` / ``heads`` should be 64."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2 if heads % 2 == 0 else 1,
        intermediate_size=4 * width,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def save_policy(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Weights and tokenizer in one directory that `load_policy` (and transformers) read."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Path(directory)


def load_policy(directory: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in float32, in evaluation mode, and its tokenizer. FileNotFoundError when there is none."""
    if not (Path(directory) / "config.json").is_file():
        raise FileNotFoundError(f"no policy in {directory}: run notebook 02_sft (or 03_train) first")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    # Not AutoTokenizer: it sees a Qwen2 model and puts Qwen2's word splitting in place of ours: other ids than in training.
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(directory)
