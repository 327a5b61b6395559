"""Importance sampling: weights by hand, and the corrected loss and gradient of a step through the real TRL trainer."""
import copy
import math
import random

import pytest
import torch
from fakes import chain, tiny_model
from test_trainer import CHAINS, GOLDEN, assert_close, made_runs, paper_gradient, player, train

from sagelib import chat, importance, mismatch
from sagelib.chat import Dialogue
from sagelib.config import ConfigError, TrainConfig
from sagelib.splits import with_earlier
from sagelib.types import Segment

CAP = 3.0


@pytest.mark.parametrize("mode, expected", [
    ("token_truncate", [[2.0, 0.5, 3.0, 1.0], [1.0, 2.0, 1.0, 1.0]]),
    ("token_mask", [[2.0, 0.5, 0.0, 1.0], [1.0, 2.0, 1.0, 1.0]]),
    ("sequence_truncate", [[3.0] * 4, [2.0] * 4]),                        # 2 * 0.5 * 8 = 8, and 2
    ("sequence_mask", [[0.0] * 4, [2.0] * 4])])
def test_weights_by_hand(mode, expected):
    trained = torch.tensor([[-1.0, -2.0, -0.5, -9.0], [-7.0, -1.0, float("-inf"), 0.0]])
    ratios = torch.tensor([[2.0, 0.5, 8.0, 4.0], [5.0, 2.0, 1.0, 1.0]])   # the last column and row 1's first are not its own
    own = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0]])
    got = importance.weights(trained, trained - ratios.log(), own, mode, CAP)
    assert torch.allclose(got, torch.tensor(expected), atol=1e-6)


def sampled_elsewhere(model, runs, spread=1.0, temperature=1.0, seed=0):
    """Gives each own token the log-probability of another sampler: the trainer's and up to ``spread`` nats more or less."""
    rng = random.Random(seed)
    for run in runs:
        for episode in run.episodes:
            for segment in chat.sequences(episode.segment):
                mine = iter(mismatch.logprobs_of(model, segment, temperature))
                segment.logprobs_T = [next(mine) + rng.uniform(-spread, spread) if own else 0.0 for own in segment.own_mask_T]
    return runs


def weights_by_hand(logprobs, segment, mode):
    """One plain number for each own token."""
    sampled = [p for p, own in zip(segment.logprobs_T, segment.own_mask_T, strict=True) if own]
    ratios = [math.exp(a - b) for a, b in zip(logprobs, sampled, strict=True)]
    if mode.startswith("sequence"):
        ratios = [math.prod(ratios)] * len(ratios)
    return [min(r, CAP) if mode.endswith("truncate") else r * (r <= CAP) for r in ratios]


def by_hand(model, runs, returns, mode, copies=4, temperature=1.0):
    """(loss, gradients, weights) of the paper's loss with weighted tokens: its value at ratio 1, and w A dlogp."""
    model = copy.deepcopy(model).train()
    value, surrogate, used = 0.0, torch.zeros(()), []
    for number, run in enumerate(runs):
        c, i = divmod(number, copies)
        for k, episode in enumerate(run.episodes):
            advantage = returns[c][k][i] - sum(returns[c][k]) / copies
            segments = chat.sequences(episode.segment)
            share = advantage / episode.segment.generated / len(runs)
            for s in segments:
                logits = model(torch.tensor([s.ids])).logits[0, len(s.prompt_ids) - 1:-1] / temperature
                logprobs = logits.log_softmax(-1)[range(len(s.completion_ids)), s.completion_ids]
                logprobs = logprobs[torch.tensor(s.own_mask_T).bool()]
                weights = weights_by_hand(logprobs.tolist(), s, mode)
                value -= share * sum(weights)
                surrogate = surrogate - share * (logprobs * torch.tensor(weights)).sum()
                used += weights if advantage else []
    surrogate.backward()
    return value, {name: p.grad for name, p in model.named_parameters()}, used


@pytest.mark.parametrize("mode, temperature, micro_batches", [
    ("token_truncate", 1.0, 1), ("token_truncate", 0.7, 4), ("token_mask", 1.0, 1), ("sequence_truncate", 1.0, 2),
    ("sequence_mask", 1.0, 1)])
def test_loss_and_gradient_are_the_weighted_ones(tmp_path, mode, temperature, micro_batches):
    model, logged = tiny_model(gain=2.0), []
    runs = sampled_elsewhere(model, made_runs(CHAINS, GOLDEN), spread=1.5, temperature=temperature)
    value, gradients, used = by_hand(model, runs, GOLDEN, mode, temperature=temperature)
    plain = paper_gradient(model, runs, GOLDEN, 4, temperature)
    _, recorder, _ = train(tmp_path, lambda chains, step: runs, model=model, temperature=temperature, importance_cap=CAP,
                           micro_batches=micro_batches, importance_sampling=mode, log=lambda **row: logged.append(row))
    assert_close(recorder.gradients[0], gradients, 2e-6)
    assert max(float((gradients[n] - plain[n]).abs().max()) for n in plain) > 1e-3       # it is another gradient
    assert logged[0]["loss"] == pytest.approx(value, abs=2e-6) and abs(value) > 1e-3
    if micro_batches == 1:
        assert logged[0]["importance_mean"] == pytest.approx(sum(used) / len(used), rel=1e-5)
        cut = sum(w == CAP if mode.endswith("truncate") else w == 0 for w in used) / len(used)
        assert logged[0]["importance_capped"] == pytest.approx(cut, abs=1e-6) and 0 < cut < 1


def test_episodes_of_several_sequences_are_weighted_in_all_of_them(tmp_path):
    model, runs = tiny_model(gain=2.0), made_runs(CHAINS, GOLDEN)
    for i, k in ((0, 0), (3, 1), (5, 0)):
        old = runs[i].episodes[k].segment
        runs[i].episodes[k].segment = new = Dialogue(old.prompt_ids, old.completion_ids, old.own_mask_T, old.logprobs_T, k)
        new.split([11 + i, 12, 13 + k])
        new.append([40 + i, 41, 42], own=True)
    _, gradients, _ = by_hand(model, sampled_elsewhere(model, runs, 1.5), GOLDEN, "token_truncate")
    for micro_batches in (1, 4):
        _, recorder, _ = train(tmp_path / str(micro_batches), lambda chains, step: runs, model=copy.deepcopy(model),
                               micro_batches=micro_batches, importance_sampling="token_truncate", importance_cap=CAP)
        assert_close(recorder.gradients[0], gradients, 2e-6)


def test_further_rows_bring_their_sampler_s_log_probabilities():
    ones = torch.ones(2, 2, dtype=torch.long)
    batch = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": ones,
             "advantages": torch.tensor([1.0, -1.0]), "sampling_per_token_logps": torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])}
    whole = with_earlier(batch, [[Segment([1], [7, 8, 9], [1, 0, 1], [-0.5, 0.0, -0.25])], []], pad_id=0, chunks=2)
    assert whole["sampling_per_token_logps"].tolist() == [[-1, -2, 0], [-3, -4, 0], [-0.5, 0, -0.25], [0, 0, 0]]


def test_a_sampler_that_agrees_gets_the_paper_s_gradient_and_weights_of_one(tmp_path):
    """The sampler that keeps its cache over turns is the trainer's model: what is left is rounding."""
    chains, logged, models = [chain(f"{s}_1", f"{s}_2") for s in "ab"], [], []
    for i, mode in enumerate(("none", "token_truncate")):
        model = tiny_model(gain=2.0)
        trained, recorder, _ = train(tmp_path / str(i), player(model, [], copies=4), model=model, chains=chains,
                                     importance_sampling=mode, log=lambda **row: logged.append(row))
        models.append(recorder.gradients[0])
    assert_close(models[1], models[0], 2e-6)
    assert logged[1]["importance_mean"] == pytest.approx(1, abs=1e-5) and logged[1]["importance_capped"] == 0
    assert "importance_mean" not in logged[0]


def test_off_the_sampler_s_numbers_do_not_matter(tmp_path):
    """Bit for bit: no log-probability of the sampler reaches the trainer."""
    gradients = []
    for i, spread in enumerate((0.0, 2.0)):
        model = tiny_model(gain=2.0)
        runs = sampled_elsewhere(model, made_runs(CHAINS, GOLDEN), spread)
        gradients.append(train(tmp_path / str(i), lambda chains, step, runs=runs: runs, model=model)[1].gradients[0])
    assert all(torch.equal(g, gradients[1][name]) for name, g in gradients[0].items())


def test_refusals(tmp_path):
    play = {"play": lambda chains, step: [], "tmp_path": tmp_path}
    with pytest.raises(ValueError, match="importance_sampling = 'tis' is not one of none, token_truncate"):
        train(importance_sampling="tis", **play)
    with pytest.raises(ValueError, match="importance_cap = 0.5 is below 1"):
        train(importance_sampling="token_mask", importance_cap=0.5, **play)
    with pytest.raises(ConfigError, match="did you mean 'token_truncate'"):
        TrainConfig.from_parameters("laptop", method="sage", importance_sampling="token_truncated")
    assert TrainConfig.from_parameters("laptop", method="sage").importance_sampling == "none"
    assert set(TrainConfig.model_fields["importance_sampling"].annotation.__args__) == set(importance.Mode.__args__)
