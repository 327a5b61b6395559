"""Importance sampling: weights for tokens that were sampled from another distribution than the trainer's.

Sampler and trainer hold the same weights, but another engine or precision gives other probabilities: tokens come from mu, and
the gradient is that of pi (`mismatch` measures how far apart they are). Each token's term of the loss is multiplied by a
weight made of r = pi/mu, through which no gradient flows. The modes and the cap C are those that TRL has for vLLM alone:

    token_truncate     min(r_t, C)                               sequence_truncate  min(prod_t r_t, C) on all its tokens
    token_mask         r_t, and 0 where r_t > C                  sequence_mask      the product, and 0 where it is > C

The product is over a training sequence's own tokens. On one step per rollout pi is the policy that is trained, so that the
clipped ratio of the loss stays 1 and the gradient is that of sum_t w_t A log pi_t.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

Mode = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def check(mode: str, cap: float) -> None:
    """ValueError for a mode that does not exist or a cap below 1, which would weaken samples on which both agree."""
    if mode not in get_args(Mode):
        raise ValueError(f"importance_sampling = {mode!r} is not one of {', '.join(get_args(Mode))}")
    if cap < 1:
        raise ValueError(f"importance_cap = {cap} is below 1, the ratio of sampler and trainer that agree; use 1 or more")


def weights(trained_BT: torch.Tensor, sampled_BT: torch.Tensor, own_BT: torch.Tensor, mode: str, cap: float) -> torch.Tensor:
    """(B, T) weights from the trainer's and the sampler's log-probabilities in nats; 1 (or its row's) where ``own_BT`` is 0."""
    log_ratio_BT = (trained_BT - sampled_BT).masked_fill(own_BT == 0, 0.0)
    if mode.startswith("sequence"):
        log_ratio_BT = log_ratio_BT.sum(1, keepdim=True).expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.exp()
    return ratio_BT.clamp(max=cap) if mode.endswith("truncate") else ratio_BT.masked_fill(ratio_BT > cap, 0.0)
