"""How far the trainer's log-probabilities are from those of the sampler, on the same tokens.

On policy both are one model: a difference is rounding, or a fault (stale weights, another template, a wrong mask). Measured
by running the trainer's model over finished sequences; one number per step in metrics.jsonl, an alarm above `ALARM`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from sagelib.types import Segment

ALARM = 0.1  # nats, largest of a step: bfloat16 training of a float32 sampler stays below, stale weights do not


@torch.no_grad()
def logprobs_of(model: Any, segment: Segment, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of the sequence's own tokens, in order, by one pass without cache."""
    ids_1T = torch.tensor([segment.ids], device=model.device)
    own = [i for i, mask in enumerate(segment.own_mask_T) if mask]
    before = torch.tensor(own, device=model.device) + len(segment.prompt_ids) - 1  # where they are predicted
    logits_NV = model(input_ids=ids_1T, logits_to_keep=before).logits[0].float() / temperature
    chosen_N1 = torch.tensor([[segment.completion_ids[i]] for i in own], device=model.device)
    return logits_NV.log_softmax(-1).gather(1, chosen_N1)[:, 0].tolist()


def measure(model: Any, segments: Sequence[Segment], temperature: float = 1.0) -> dict[str, float] | None:
    """Over all own tokens: ``mismatch_max`` and ``mismatch_mean`` of |difference| in nats, ``mismatch_kl`` (the k3 estimate of
    KL(sampler || trainer)), ``ratio_max`` (largest trainer/sampler probability). None when nothing was sampled.

    Warns above `ALARM`.
    """
    differences: list[float] = []
    for segment in segments:
        if segment.generated:
            sampled = [p for p, own in zip(segment.logprobs_T, segment.own_mask_T, strict=True) if own]
            mine = logprobs_of(model, segment, temperature)
            differences += [a - b for a, b in zip(mine, sampled, strict=True)]
    if not differences:
        return None
    delta = torch.tensor(differences, dtype=torch.float64)
    found = {
        "mismatch_max": float(delta.abs().max()),
        "mismatch_mean": float(delta.abs().mean()),
        "mismatch_kl": float((delta.exp() - 1 - delta).mean()),
        "ratio_max": float(delta.max().exp()),
    }
    if found["mismatch_max"] > ALARM:
        warnings.warn(f"sampler and trainer disagree by {found['mismatch_max']:.2g} nats on a token (alarm at {ALARM}): is the "
                      "sampler's precision that of training, and does it have the newest weights?", stacklevel=2)
    return found
