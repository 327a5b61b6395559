"""Policies: anything that continues token ids. `rollout` only knows the `Policy` protocol.

`CachedPolicy` samples from a transformers model and keeps its key/value cache across the turns of an episode, so that
each token is computed once (same tokens as with a full prefill each turn, see tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Between two calls each row lies by itself, without padding; `generate` lines up the rows that it is asked for.

    Within a call rows share one left-padded matrix with holes; a hole is masked and takes no position. Rows that ended
    leave the matrix once they are a quarter of it: otherwise every row costs as much as the longest.
    """

    SPARSE = 0.75

    def __init__(self, policy: CachedPolicy, prompts: Sequence[list[int]], seed: int) -> None:
        self.policy = policy
        self.pending: list[list[int]] = [list(p) for p in prompts]  # ids of each row that were not computed yet
        self.parked: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # row -> keys, values (H, T, D) per layer
        self.device = policy.model.device
        self.generator = torch.Generator().manual_seed(seed)

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self.pending[row] += chunk

    def replace(self, row: int, ids: list[int]) -> None:
        self.pending[row] = list(ids)
        if self.parked:
            self.parked[row] = [(keys[:, :0], values[:, :0]) for keys, values in self.parked[row]]

    def _line_up(self, rows: Sequence[int]) -> None:
        """The rows' keys and values become one cache, aligned at the right; rows that are left out are forgotten."""
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)
        parked, self.parked = self.parked, {}
        lengths = [parked[row][0][0].shape[1] if parked else 0 for row in rows]
        width = max(lengths)
        self.mask_BT = torch.zeros(len(rows), width, dtype=torch.long, device=self.device)
        for i, length in enumerate(lengths):
            self.mask_BT[i, width - length :] = 1
        for layer in range(len(parked[rows[0]]) if parked else 0):
            lined_up = []
            for part in (0, 1):
                first = parked[rows[0]][layer][part]
                whole_BHTD = first.new_zeros(len(rows), first.shape[0], width, first.shape[2])
                for i, row in enumerate(rows):
                    whole_BHTD[i, :, width - lengths[i] :] = parked[row][layer][part]
                lined_up.append(whole_BHTD)
            self.cache.update(*lined_up, layer)

    def _park(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Take the keys and values of these rows of the matrix out of it, without its holes."""
        for slot, row in zip(slots, rows, strict=True):
            real_T = self.mask_BT[slot].bool()
            self.parked[row] = [(a.keys[slot][:, real_T], a.values[slot][:, real_T]) for a in self.cache.layers]

    def _select(self, slots: Sequence[int]) -> None:
        index = torch.tensor(slots, device=self.device)
        self.cache.batch_select_indices(index)
        self.mask_BT = self.mask_BT[index]

    def _feed(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Run the model on new columns; returns the last column's logits (B, V) in float32."""
        self.mask_BT = torch.cat([self.mask_BT, mask_BT], 1)
        positions_BT = (self.mask_BT.cumsum(1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
        out = self.policy.model(
            input_ids=ids_BT,
            attention_mask=self.mask_BT,
            position_ids=positions_BT,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float()

    def _feed_pending(self, rows: Sequence[int]) -> torch.Tensor:
        """Compute what was not computed yet; logits (B, V). Equal prompts (the copies of a task) are computed once."""
        chunks = [tuple(self.pending[row]) for row in rows]
        if not self.mask_BT.shape[1]:
            chunks = list(dict.fromkeys(chunks))
            self.mask_BT = self.mask_BT[: len(chunks)]
        width = max(map(len, chunks))
        ids_BT = torch.full((len(chunks), width), self.policy.pad_id, device=self.device)
        mask_BT = torch.zeros(len(chunks), width, dtype=torch.long, device=self.device)
        for i, chunk in enumerate(chunks):
            ids_BT[i, width - len(chunk) :] = torch.tensor(chunk, device=self.device)
            mask_BT[i, width - len(chunk) :] = 1
        logits_BV = self._feed(ids_BT, mask_BT)
        if len(chunks) == len(rows):
            return logits_BV
        copies = [chunks.index(tuple(self.pending[row])) for row in rows]
        self._select(copies)
        return logits_BV[copies]

    @torch.no_grad()
    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        self._line_up(rows)
        logits_BV = self._feed_pending(rows)
        samples = {row: Sample([], [], "length") for row in rows}
        inside, is_open = list(rows), dict.fromkeys(rows, True)  # rows of the matrix; which of them go on
        for step in range(max_new_tokens):
            next_B, logprob_B = self._sample(logits_BV)
            for row, token, logprob in zip(inside, next_B.tolist(), logprob_B.tolist(), strict=True):
                if is_open[row]:
                    samples[row].ids.append(token)
                    samples[row].logprobs.append(logprob)
                    is_open[row] = token not in self.policy.end_ids
            going = [slot for slot, row in enumerate(inside) if is_open[row]]
            if step + 1 == max_new_tokens or not going:
                break
            if len(going) <= self.SPARSE * len(inside):
                ended = [slot for slot, row in enumerate(inside) if not is_open[row]]
                self._park(ended, [inside[slot] for slot in ended])
                self._select(going)
                inside, next_B = [inside[slot] for slot in going], next_B[going]
            open_B = torch.tensor([is_open[row] for row in inside], device=self.device)
            logits_BV = self._feed(torch.where(open_B, next_B, self.policy.pad_id)[:, None], open_B.long()[:, None])
        self._park(range(len(inside)), inside)
        for row in rows:
            self.pending[row] = samples[row].ids[-1:]  # not computed yet: it leads the next chunk
        return [replace(samples[row], finish="length" if is_open[row] else "stop") for row in rows]

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
        return ScriptedSession(self, prompts)


class WholeSequences:
    """The part of a session that keeps each row as one list of ids, for policies without a cache."""

    def __init__(self, sequences: Sequence[list[int]]) -> None:
        self.sequences = [list(ids) for ids in sequences]

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self.sequences[row] += chunk

    def replace(self, row: int, ids: list[int]) -> None:
        self.sequences[row] = list(ids)


class ScriptedSession(WholeSequences):
    def __init__(self, policy: ScriptedPolicy, sequences: Sequence[list[int]]) -> None:
        super().__init__(sequences)
        self.policy, self.turns = policy, [0] * len(sequences)

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
