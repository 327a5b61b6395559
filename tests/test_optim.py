"""MuonAdamW: torch's Muon on the matrices (up to bfloat16), exactly torch's AdamW on the rest, also across a checkpoint."""
import copy

import pytest
import torch
from fakes import tiny_model

from sagelib.optim import MuonAdamW, orthogonal

LR, DECAY = 3e-3, 0.01


def gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def test_an_orthogonal_update_keeps_the_directions_and_levels_the_singular_values():
    matrices = torch.randn(3, 24, 60, generator=torch.Generator().manual_seed(0))
    for shaped in (matrices, matrices.mT):
        U, S, Vh = torch.linalg.svd(shaped, full_matrices=False)
        S_new = torch.diagonal(U.mT @ orthogonal(shaped) @ Vh.mT, dim1=1, dim2=2)
        assert S.max() / S.min() > 3 and 0.6 < S_new.min() and S_new.max() < 1.3
        assert torch.allclose(U @ torch.diag_embed(S_new) @ Vh, orthogonal(shaped), atol=1e-4)


def test_matrices_get_muon_and_the_rest_adamw():
    model, twin = tiny_model(), tiny_model()
    embedding = twin.get_input_embeddings().weight
    matrices = [p for p in twin.parameters() if p.ndim == 2 and p is not embedding]
    rest = [p for p in twin.parameters() if p.ndim != 2 or p is embedding]
    assert len(matrices) == 7 * twin.config.num_hidden_layers   # q, k, v, o, gate, up, down
    ours = MuonAdamW(model, LR, DECAY)
    parts = [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
             torch.optim.AdamW(rest, lr=LR, weight_decay=DECAY)]
    before = weights(model)
    for step in range(3):
        gradients(model, step), gradients(twin, step)
        ours.step()
        for part in parts:
            part.step()
    chosen = {id(p) for p in matrices}
    for old, a, b in zip(before, model.parameters(), twin.parameters(), strict=True):
        if id(b) in chosen:   # torch iterates in bfloat16: 8 bits
            assert (a - b).norm() < 0.02 * (a - old).norm() > 0
        else:
            assert torch.equal(a, b)


def test_a_loaded_state_goes_on_as_if_nothing_had_happened():
    model = tiny_model()
    optimizer = MuonAdamW(model, LR, DECAY)
    gradients(model, 0)
    optimizer.step()
    twin, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    second = MuonAdamW(twin, LR, DECAY)
    second.load_state_dict(state)
    for part, one in ((model, optimizer), (twin, second)):
        gradients(part, 1)
        one.step()
    for a, b in zip(weights(model), weights(twin), strict=True):
        assert torch.equal(a, b)


def test_a_scheduler_reaches_both_parts():
    model = tiny_model()
    optimizer = MuonAdamW(model, LR, 0.0)
    before = weights(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    gradients(model, 0)
    optimizer.step()
    scheduler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_a_closure_is_refused():
    with pytest.raises(ValueError, match="closure"):
        MuonAdamW(tiny_model(), LR, DECAY).step(lambda: 0.0)
