"""The optimizer of a model that is trained from nothing: Muon for the weight matrices, AdamW for the rest.

Muon (K. Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) makes each update of a matrix nearly orthogonal.
Measured here (LOG.md, 2026-11-30): the copying pairs reach a loss of 0.24 after 300 steps, with AdamW 0.75.

torch.optim.Muon iterates in bfloat16, which costs 4 seconds a step on a processor that has no bfloat16 units; here that is
float32 on such a processor, and matrices of equal shape go through the iteration together.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration; slope at zero is what they maximise
ITERATIONS = 5


def has_fast_bf16() -> bool:
    """Whether this machine multiplies bfloat16 faster than float32. Many CPUs emulate it, ten times slower."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def orthogonal(updates_NMK: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Newton-Schulz: each of the N matrices becomes U V^T of its singular value decomposition, singular values 0.7 to 1.2.

    ``dtype``: of the iteration.
    """
    a, b, c = COEFFICIENTS
    tall = updates_NMK.shape[1] > updates_NMK.shape[2]
    X_NMK = updates_NMK.mT if tall else updates_NMK
    X_NMK = (X_NMK / X_NMK.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        gram_NMM = X_NMK @ X_NMK.mT
        gram_NMM = torch.baddbmm(gram_NMM, gram_NMM, gram_NMM, beta=b, alpha=c)
        X_NMK = torch.baddbmm(X_NMK, gram_NMM, X_NMK, beta=a)
    return (X_NMK.mT if tall else X_NMK).to(updates_NMK.dtype)


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer for Trainer and its checkpoints. Group 0: matrices (Muon), group 1: the rest (AdamW)."""

    def __init__(self, model: PreTrainedModel, lr: float, weight_decay: float) -> None:
        embedding = model.get_input_embeddings().weight
        matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
        rest = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
        super().__init__([{"params": matrices}, {"params": rest}], {"lr": lr, "weight_decay": weight_decay})
        self._adam = torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay)
        self.param_groups[1].update({k: v for k, v in self._adam.param_groups[0].items() if k != "params"})
        self.dtype = torch.bfloat16 if has_fast_bf16() else torch.float32   # of the iteration
        self._share()

    def _share(self) -> None:
        self._adam.param_groups, self._adam.state = [self.param_groups[1]], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimizer's; AdamW sees what was loaded."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of all parameters; ``closure`` is not supported (Trainer has none)."""
        if closure is not None:
            raise ValueError("MuonAdamW takes no closure")
        self._adam.step()
        group = self.param_groups[0]
        shapes: dict[torch.Size, list[torch.Tensor]] = {}
        for p in (p for p in group["params"] if p.grad is not None):
            shapes.setdefault(p.shape, []).append(p)
        for shape, matrices in shapes.items():
            updates = orthogonal(torch.stack([self._nesterov(p) for p in matrices]), self.dtype)
            size = group["lr"] * 0.2 * max(shape) ** 0.5  # the root mean square of AdamW's updates (arXiv 2502.16982)
            for p, update in zip(matrices, updates, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)

    def _nesterov(self, p: torch.Tensor) -> torch.Tensor:
        if not self.state[p]:
            self.state[p]["momentum"] = torch.zeros_like(p)
        momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - MOMENTUM)
        return p.grad.lerp(momentum, MOMENTUM)
