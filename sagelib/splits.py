"""Episodes of more than one training sequence (see `chat.Dialogue`) in a batch of TRL's, which has one row for each.

The earlier sequences become rows of their own. The loss is linear in the advantage, so the paper's mean over all tokens |o|
of the episode is kept by shares: a row of n own tokens gets n/|o| of the episode's advantage, and (rows now) / (rows before)
makes up for the larger batch over which TRL takes the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from sagelib.chat import sequences
from sagelib.types import Episode, Segment

PROMPT, COMPLETION = ("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask", "tool_mask")
SAMPLER = "sampling_per_token_logps"   # in the batch where `importance` needs them


def earlier_sequences(episodes: Sequence[Episode]) -> list[list[Segment]]:
    """Per episode the sequences before its last one; none of an episode that was not scored."""
    return [sequences(e.segment)[:-1] if e.scored else [] for e in episodes]


def with_earlier(
    batch: dict[str, Any], earlier: Sequence[Sequence[Segment]], pad_id: int, chunks: int, least: int = 0
) -> dict[str, Any]:
    """TRL's batch with the earlier sequences as further rows, filled with empty rows to a multiple of ``chunks``.

    ``least``: at least so many further rows, for all processes need equally many. ValueError where the batch has columns
    per token that the further rows cannot have (log-probabilities of an earlier policy).
    """
    extra = [(row, segment) for row, segments in enumerate(earlier) for segment in segments]
    if not extra and not least:
        return batch
    batch = dict(batch)
    before = batch["prompt_ids"].shape[0]
    unknown = [name for name, value in batch.items() if isinstance(value, torch.Tensor) and value.dim() > 0
               and value.shape[0] == before and name not in (*PROMPT, *COMPLETION, SAMPLER, "advantages")]
    if unknown or batch["advantages"].dim() != 1:
        raise ValueError(f"episodes of several sequences do not go with the columns {unknown or ['advantages per token']}: "
                         "use keep_history = True, or one on-policy step per rollout")
    batch.setdefault("tool_mask", torch.ones_like(batch["completion_mask"]))
    own = (batch["completion_mask"] * batch["tool_mask"]).sum(1).float()
    whole = own.clone()
    for row, segment in extra:
        whole[row] += segment.generated
    grow = max(len(extra), least)
    grow += -(before + grow) % chunks
    scale = batch["advantages"] / whole.clamp(min=1) * (before + grow) / before
    device, dtype = batch["prompt_ids"].device, batch["advantages"].dtype
    shares = [float(scale[row]) * segment.generated for row, segment in extra] + [0.0] * (grow - len(extra))
    batch["advantages"] = torch.cat([scale * own, torch.tensor(shares, device=device, dtype=dtype)])
    blank = Segment([pad_id], [pad_id], [0])
    segments = [segment for _, segment in extra] + [blank] * (grow - len(extra))
    columns = {
        "prompt_ids": [s.prompt_ids for s in segments],
        "prompt_mask": [[1] * len(s.prompt_ids) for s in segments],
        "completion_ids": [s.completion_ids for s in segments],
        "completion_mask": [[1] * len(s.completion_ids) for s in segments],
        "tool_mask": [s.own_mask_T for s in segments],
    }
    if SAMPLER in batch:
        columns[SAMPLER] = [s.logprobs_T or [0.0] for s in segments]   # a blank row has none
    for name, rows in columns.items():
        batch[name] = _stack(batch[name], rows, pad_id if name.endswith("ids") else 0, left=name in PROMPT)
    return batch


def _stack(top_BT: torch.Tensor, rows: Sequence[Sequence[int]], fill: int, left: bool) -> torch.Tensor:
    width = max(top_BT.shape[1], *map(len, rows))

    def padded(x_BT: torch.Tensor) -> torch.Tensor:
        missing = width - x_BT.shape[1]
        return pad(x_BT, (missing, 0) if left else (0, missing), value=fill)

    parts = [torch.tensor([row], dtype=top_BT.dtype, device=top_BT.device) for row in rows]
    return torch.cat([padded(part) for part in (top_BT, *parts)])
