"""Token ids as text pieces for the viewer: which policy's tokenizer a run used, and a segment cut into shaded pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sagelib.runs import read_json


def policy_dir(run: Path) -> Path | None:
    """Directory of the tokenizer that sampled a run's episodes: its own policy, else that of a run it was started from."""
    record, seen = read_json(run / "run.json") or {}, read_json(run / "config.json") or {}
    method = seen.get("method", "sft")
    inputs = [Path(i["directory"]) for i in record.get("inputs") or []]
    inputs += [run.parent / i.name for i in inputs]   # a runs/ folder that was moved
    names = ("policy", "sft", *(["base"] if method == "base" else []))
    places = [place / name for place in (run, *inputs) for name in names]
    return next((place for place in places if (place / "tokenizer.json").is_file()), None)


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a policy's directory. Not through transformers: importing that takes longer than making the page."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def whole(segment: dict[str, Any]) -> dict[str, Any]:
    """A recorded segment with the sequences before it, where an LLM's episode has several: one prompt, all that followed.

    The prompts of the later sequences repeat what was there, as the chat template rewrote it; they are left out.
    """
    if not segment.get("earlier"):
        return segment
    parts = [*segment["earlier"], segment]
    joined = {key: [x for part in parts for x in part[key]] for key in ("completion_ids", "own_mask_T", "logprobs_T")}
    return {"prompt_ids": parts[0]["prompt_ids"], **joined}


class Pieces:
    """Cuts segments into pieces. Each text is kept once, in `texts`; without a tokenizer a segment is only counted."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer, self.texts = tokenizer, []
        self._index: dict[str, int] = {}
        self._alone: dict[int, str] = {}

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _put(self, text: str) -> int:
        if text not in self._index:
            self._index[text] = len(self.texts)
            self.texts.append(text)
        return self._index[text]

    def cut(self, ids: Sequence[int], own_T: Sequence[int]) -> list[str]:
        """One text per id. Bytes of one character that lie in several tokens: all of it in the first, "" in the others."""
        for i in set(ids) - self._alone.keys():
            self._alone[i] = self._text([i])
        texts = [self._alone[i] for i in ids]
        start = 0
        while start < len(ids):
            end = start + 1
            if "\ufffd" in texts[start]:
                while end < len(ids) and "\ufffd" in texts[end] and own_T[end] == own_T[start]:
                    end += 1
                texts[start:end] = [self._text(ids[start:end]), *[""] * (end - start - 1)]
            start = end
        return texts

    def encode(self, segment: dict[str, Any]) -> dict[str, Any]:
        """prompt (text), piece (indices into `texts`), own (run lengths: world, policy, world, ...), p (% per own token)."""
        segment = whole(segment)
        ids, own = segment["completion_ids"], segment["own_mask_T"]
        if not len(ids) == len(own) == len(segment["logprobs_T"]):
            lengths = len(ids), len(own), len(segment["logprobs_T"])
            raise ValueError(f"ids, mask and log-probabilities of a segment have lengths {lengths}; they must be equal")
        runs, value = [0], 0
        for mask in own:
            if mask != value:
                runs.append(0)
                value = mask
            runs[-1] += 1
        counts = {"own": runs, "prompt_tokens": len(segment["prompt_ids"])}
        if self.tokenizer is None:
            return counts
        percent = [round(100 * math.exp(min(x, 0.0))) if math.isfinite(x) else None
                   for x, mask in zip(segment["logprobs_T"], own, strict=True) if mask]
        return {**counts, "prompt": self._text(segment["prompt_ids"]), "p": percent,
                "piece": [self._put(text) for text in self.cut(ids, own)]}


def dumps(value: Any) -> bytes:
    """Compact ASCII JSON (lone surrogates as escapes); a NaN is an error here, not a page that does not open."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
