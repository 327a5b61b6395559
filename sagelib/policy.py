"""Policies: anything that continues token ids. `rollout` only knows the `Policy` protocol.

`CachedPolicy` samples from a transformers model and keeps its key/value cache across the turns of an episode, so that
each token is computed once (same tokens as with a full prefill each turn, see tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(frozen=True)
class Sample:
    """Sampled ids (the end token included), their log-probabilities under the sampling distribution, and why it ended."""

    ids: list[int]
    logprobs: list[float]
    finish: str  # "stop" | "length"


class Session(Protocol):
    """A batch of growing sequences. Rows are numbered as in `Policy.start`."""

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        """Afterwards the given rows end in these ids (observations: given, not sampled)."""

    def replace(self, row: int, ids: list[int]) -> None:
        """Afterwards the row is these ids alone (a chat template rewrote its history)."""

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        """Sample one reply for each of ``rows``; rows that are left out are finished for good."""


class Policy(Protocol):
    def start(self, prompts: Sequence[list[int]], seed: int) -> Session:
        """Open sequences that begin with these ids. Equal seeds and prompts give equal samples (on CPU, bitwise)."""


class GrowingLayer(DynamicLayer):
    """A cache layer with spare room: the stock layer copies everything at each token, 2/3 of a small model's time."""

    ROOM = 128
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old, new = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < new:
            size = (*key_states.shape[:-2], new + self.ROOM, key_states.shape[-1])
            buffers = (key_states.new_empty(size), value_states.new_empty(size))
            if old:
                buffers[0][..., :old, :], buffers[1][..., :old, :] = self.keys, self.values
            self._buffers = buffers
        self._buffers[0][..., old:new, :], self._buffers[1][..., old:new, :] = key_states, value_states
        self.keys, self.values = self._buffers[0][..., :new, :], self._buffers[1][..., :new, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._buffers = None


class CachedPolicy:
    """A transformers causal LM at a fixed temperature; no top-p/top-k, so log-probabilities are those that are trained."""

    def __init__(self, model: PreTrainedModel, end_ids: frozenset[int], pad_id: int, temperature: float = 1.0) -> None:
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0 (0 = greedy), got {temperature}")
        self.model, self.end_ids, self.pad_id, self.temperature = model, end_ids, pad_id, temperature

    def start(self, prompts: Sequence[list[int]], seed: int) -> CachedSession:
        return CachedSession(self, prompts, seed)


class CachedSession:
    """Rows share one left-padded matrix with holes; a hole is masked and takes no position."""

    def __init__(self, policy: CachedPolicy, prompts: Sequence[list[int]], seed: int) -> None:
        self.policy = policy
        self.live = list(range(len(prompts)))  # original row of each row in the cache
        self.pending: list[list[int]] = [list(p) for p in prompts]  # ids not yet in the cache, per live row
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)
        self.device = policy.model.device
        self.mask_BT = torch.zeros(len(prompts), 0, dtype=torch.long, device=self.device)
        self.generator = torch.Generator().manual_seed(seed)

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self.pending[self.live.index(row)] += chunk

    def replace(self, row: int, ids: list[int]) -> None:
        index = self.live.index(row)
        self.mask_BT[index] = 0  # what the cache holds of it is a hole from now on
        self.pending[index] = list(ids)

    def _keep(self, rows: Sequence[int]) -> None:
        if list(rows) == self.live:
            return
        index = [self.live.index(row) for row in rows]
        if self.mask_BT.shape[1]:
            self.cache.batch_select_indices(torch.tensor(index, device=self.device))
        self.mask_BT = self.mask_BT[index]
        self.pending = [self.pending[i] for i in index]
        self.live = list(rows)

    def _feed(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Run the model on new columns; returns the last column's logits (B, V) in float32."""
        self.mask_BT = torch.cat([self.mask_BT, mask_BT], 1)
        positions_BT = (self.mask_BT.cumsum(1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
        out = self.policy.model(
            input_ids=ids_BT,
            attention_mask=self.mask_BT,
            position_ids=positions_BT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float()

    @torch.no_grad()
    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        self._keep(rows)
        size, pad, ends = len(rows), self.policy.pad_id, self.policy.end_ids
        width = max(map(len, self.pending))
        ids_BT = torch.full((size, width), pad, device=self.device)
        mask_BT = torch.zeros(size, width, dtype=torch.long, device=self.device)
        for i, chunk in enumerate(self.pending):
            ids_BT[i, width - len(chunk) :] = torch.tensor(chunk, device=self.device)
            mask_BT[i, width - len(chunk) :] = 1
        logits_BV = self._feed(ids_BT, mask_BT)
        ids: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        open_B = torch.ones(size, dtype=torch.long, device=self.device)
        for step in range(max_new_tokens):
            next_B, logprob_B = self._sample(logits_BV)
            for i in open_B.nonzero()[:, 0].tolist():
                ids[i].append(int(next_B[i]))
                logprobs[i].append(float(logprob_B[i]))
                if ids[i][-1] in ends:
                    open_B[i] = 0
            if step + 1 == max_new_tokens or not open_B.any():
                break
            logits_BV = self._feed(torch.where(open_B.bool(), next_B, pad)[:, None], open_B[:, None])
        # The last sampled token of a row is not in the cache yet: it leads the next chunk.
        self.pending = [row_ids[-1:] for row_ids in ids]
        return [Sample(a, b, "stop" if a[-1] in ends else "length") for a, b in zip(ids, logprobs, strict=True)]

    def _sample(self, logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.policy.temperature == 0:
            logprobs_BV = logits_BV.log_softmax(-1)
            next_B = logits_BV.argmax(-1)
        else:
            logprobs_BV = (logits_BV / self.policy.temperature).log_softmax(-1)
            cumulative_BV = logprobs_BV.double().exp().cumsum(-1)  # inverse CDF: 4x cheaper than torch.multinomial here
            draw_B1 = torch.rand(len(logits_BV), 1, generator=self.generator, dtype=torch.float64).to(self.device)
            draw_B1 = draw_B1 * cumulative_BV[:, -1:]
            next_B = torch.searchsorted(cumulative_BV, draw_B1, right=True)[:, 0].clamp(max=logits_BV.shape[1] - 1)
        return next_B, logprobs_BV.gather(1, next_B[:, None])[:, 0]


class ScriptedPolicy:
    """Replays replies given as text, for tests and for demonstrations. ``script(row, turn, ids) -> text``."""

    def __init__(self, format, script) -> None:
        self.format, self.script = format, script

    def start(self, prompts: Sequence[list[int]], seed: int) -> ScriptedSession:
        return ScriptedSession(self, [list(p) for p in prompts])


class ScriptedSession:
    def __init__(self, policy: ScriptedPolicy, sequences: list[list[int]]) -> None:
        self.policy, self.sequences, self.turns = policy, sequences, [0] * len(sequences)

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self.sequences[row] += chunk

    def replace(self, row: int, ids: list[int]) -> None:
        self.sequences[row] = list(ids)

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        samples = []
        for row in rows:
            text = self.policy.script(row, self.turns[row], self.sequences[row])
            whole = [*self.policy.format.encode(text), self.policy.format.end_id]
            ids = whole[:max_new_tokens]
            self.turns[row] += 1
            self.sequences[row] += ids
            samples.append(Sample(ids, [0.0] * len(ids), "stop" if len(ids) == len(whole) else "length"))
        return samples
