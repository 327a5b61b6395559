"""The cached policy against the model itself: same tokens and log-probabilities as a full prefill of every turn."""
from types import SimpleNamespace

import pytest
import torch
from fakes import tiny_format, tiny_model

from sagelib.policy import CachedPolicy, ScriptedPolicy

PAD = 0
PROMPTS = [[5, 9, 200, 17], [33], [8, 8, 120, 41, 77, 3, 90, 14, 55], [100, 101]]


def row_logprobs(model, ids, count, temperature=1.0):
    """Log-softmax (count, V) of the last ``count`` predictions, from one unpadded, uncached pass over ``ids``."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -count - 1:-1].float()
    return (logits / temperature).log_softmax(-1)


def greedy_reference(model, ids, ends, limit):
    """Greedy continuation by a full pass per token."""
    new, logprobs = [], []
    while len(new) < limit and not (new and new[-1] in ends):
        last = row_logprobs(model, [*ids, *new, 0], 1)[0]
        new.append(int(last.argmax()))
        logprobs.append(float(last.max()))
    return new, logprobs


def an_early_end(model, step):
    """A token that row 2 samples greedily at ``step``: as end token it stops that row early."""
    return greedy_reference(model, PROMPTS[2], frozenset(), step + 1)[0][step]


def test_greedy_equals_full_prefill_over_turns_with_rows_dropping_out():
    model = tiny_model()
    ends = frozenset({an_early_end(model, 2)})
    session = CachedPolicy(model, ends, PAD, temperature=0).start(PROMPTS, seed=0)
    sequences = [list(p) for p in PROMPTS]
    turns = [([0, 1, 2, 3], 6), ([0, 2, 3], 9), ([2, 3], 1), ([3], 5)]
    chunks = {row: [50 + row] * (row + 1) for row in range(4)}             # observations of unequal length
    finishes = set()
    for turn, (rows, limit) in enumerate(turns):
        samples = session.generate(rows, limit)
        for row, sample in zip(rows, samples, strict=True):
            ids, logprobs = greedy_reference(model, sequences[row], ends, limit)
            assert sample.ids == ids, (turn, row)
            assert sample.logprobs == pytest.approx(logprobs, abs=1e-4)
            assert sample.finish == ("stop" if ids[-1] in ends else "length")
            finishes.add(sample.finish)
            sequences[row] += ids
        live = turns[turn + 1][0] if turn + 1 < len(turns) else []
        session.extend(live, [chunks[row] for row in live])
        for row in live:
            sequences[row] += chunks[row]
    assert finishes == {"stop", "length"}


def test_the_first_sampled_token_may_be_the_end():
    model = tiny_model()
    end = an_early_end(model, 0)
    session = CachedPolicy(model, frozenset({end}), PAD, temperature=0).start(PROMPTS, seed=0)
    assert session.generate([0, 1, 2, 3], 4)[2].ids == [end]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_logprobs_are_the_models_at_that_temperature(temperature):
    model = tiny_model(gain=3.0)
    session = CachedPolicy(model, frozenset({1}), PAD, temperature).start(PROMPTS, seed=3)
    sequences = [list(p) for p in PROMPTS]
    for rows in ([0, 1, 2, 3], [1, 3], [3]):
        session.extend(rows, [[60, 61]] * len(rows))
        samples = session.generate(rows, 7)
        for row, sample in zip(rows, samples, strict=True):
            sequences[row] += [60, 61, *sample.ids]
            reference = row_logprobs(model, sequences[row], len(sample.ids), temperature)
            expected = reference[range(len(sample.ids)), sample.ids]
            assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_equal_seeds_equal_samples_other_seeds_other_samples():
    policy = CachedPolicy(tiny_model(gain=2.0), frozenset({1}), PAD)

    def play(seed):
        session = policy.start(PROMPTS, seed)
        first = session.generate([0, 1, 2, 3], 8)
        session.extend([1, 2], [[7], [7, 7]])
        return first + session.generate([1, 2], 8)

    torch.manual_seed(1)
    once = play(4)
    torch.manual_seed(2)                          # the global stream plays no part
    assert play(4) == once
    assert play(5) != once


@pytest.mark.parametrize("temperature, power", [(1.0, 1), (0.5, 2)])
def test_sampling_follows_the_distribution(temperature, power):
    p = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])
    expected = p**power / (p**power).sum()
    n = 20_000

    def model(input_ids, **kwargs):
        return SimpleNamespace(logits=p.log().expand(len(input_ids), 1, 5))

    model.device = torch.device("cpu")
    samples = CachedPolicy(model, frozenset({4}), PAD, temperature).start([[1]] * n, seed=0).generate(range(n), 1)
    ids = torch.tensor([sample.ids[0] for sample in samples])
    share = torch.bincount(ids, minlength=5) / n
    for token in range(5):
        q = float(expected[token])
        assert abs(float(share[token]) - q) <= 4 * (q * (1 - q) / n) ** 0.5
    assert [s.logprobs[0] for s in samples] == pytest.approx(expected.log()[ids].tolist(), abs=1e-5)


def test_negative_temperature_is_refused():
    with pytest.raises(ValueError, match="-0.1"):
        CachedPolicy(tiny_model(), frozenset({1}), PAD, temperature=-0.1)


def test_scripted_policy_says_when_a_reply_was_cut():
    format = tiny_format()
    session = ScriptedPolicy(format, lambda row, turn, ids: "I am done.").start([[5]], seed=0)
    full = format.encode("I am done.") + [format.end_id]
    assert (session.generate([0], len(full))[0].ids, session.sequences[0]) == (full, [5, *full])
    cut = session.generate([0], len(full) - 1)[0]
    assert (cut.ids, cut.finish) == (full[:-1], "length")
