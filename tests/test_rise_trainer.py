"""SkillRise through the real TRL trainer on a 0.1M model: batch, gradient against a hand-written loss, masks, learning."""
import copy
import random

import pytest
import torch
from fakes import tiny_format, tiny_model, tiny_tokenizer
from rise_fakes import FakeTextWorld, sequence
from transformers import TrainerCallback

from sagelib.policy import CachedPolicy
from sagelib.rise_credit import RiseCredit, advantages
from sagelib.rise_loop import play_trials
from sagelib.rise_prompts import Budgets
from sagelib.rise_rows import training_rows
from sagelib.rise_trainer import batch_of, make_rise_trainer
from sagelib.rise_types import Attempt, Curation, LoopSettings, Trial
from sagelib.types import Segment, StopReason

CHAINS = [sequence("red", 1, 2, 3), sequence("blue", 1, 2, 3)]
# solved[sequence][copy][position]
SOLVED = [[[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]], [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]]


def made_trials(chains=CHAINS, solved=SOLVED, seed=0, failed=frozenset(), tail=()):
    """Finished trials with random ids: attempts of one or two rows with an observation inside, and curations."""
    rng = random.Random(seed)

    def segment(position, parts):
        made = Segment([rng.randrange(3, 200) for _ in range(rng.randint(3, 9))], position=position)
        for own in parts:
            made.append([rng.randrange(3, 200) for _ in range(rng.randint(2, 8))], own=own)
        made.append(list(tail), own=False)
        return made

    trials = []
    for c, chain in enumerate(chains):
        for g in range(len(solved[c])):
            trial = Trial(chain, g)
            for k, task_id in enumerate(chain.task_ids):
                good = bool(solved[c][g][k])
                attempt = Attempt(task_id, chain.scenario_id, k, "", segment(k, (1, 0, 1)), success=good, fraction=float(good))
                if rng.random() < 0.4:
                    attempt.earlier, attempt.invalid = [segment(k, (1,))], [rng.random() < 0.5, False]
                if (c, g, k) in failed:
                    attempt.stop, attempt.fraction = StopReason.env_failure, None
                trial.episodes.append(attempt)
                if k + 1 < len(chain.task_ids):
                    trial.curations.append(Curation(k, segment(k, (1,)), "", rng.random() < 0.7, "", ""))
            trials.append(trial)
    return trials


class Recorder(TrainerCallback):
    """Gradients as the optimizer is about to see them."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def train(tmp_path, play, *, model=None, credit=None, chains=CHAINS, copies=4, steps=1, **options):
    model = model or tiny_model(gain=2.0)
    settings = {"learning_rate": 1e-3, "grad_clip": 1e9, "bf16": False, "weight_decay": 0.0, **options}
    trainer = make_rise_trainer(model, tiny_tokenizer(), list(chains) * steps, play, credit or RiseCredit(), output_dir=tmp_path,
                                copies=copies, sequences_per_step=len(chains), steps=steps, **settings)
    recorder = Recorder()
    trainer.add_callback(recorder)
    trainer.train()
    return model, recorder


def hand_written_gradient(model, trials, credit):
    """-sum_i A_i sum_t logp(own token t) / (all own tokens), row by row without padding: token mean on policy (ratio 1)."""
    model = copy.deepcopy(model).train()
    rows = training_rows(trials, credit)
    tokens = sum(sum(row.segment.own_mask_T) for row in rows)
    loss = torch.zeros(())
    for row, advantage in zip(rows, advantages([row.score for row in rows], credit), strict=True):
        segment = row.segment
        logits = model(torch.tensor([segment.ids])).logits[0, len(segment.prompt_ids) - 1:-1]
        logprobs = logits.log_softmax(-1)[range(len(segment.completion_ids)), segment.completion_ids]
        own = torch.tensor(segment.own_mask_T)
        share = own.sum() / tokens if credit.aggregate == "token_mean" else 1 / len(rows)
        loss = loss - advantage * share * (logprobs * own).sum() / own.sum()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_close(got, expected, tolerance=1e-5):
    assert got.keys() == expected.keys()
    for name in expected:
        assert (got[name] - expected[name]).abs().max() < tolerance, name
    assert max(float(g.abs().max()) for g in expected.values()) > 100 * tolerance     # the comparison says something


def test_the_batch_holds_every_row_once_and_is_filled_with_rows_that_teach_nothing():
    trials = made_trials()
    rows = training_rows(trials, RiseCredit())
    batch = batch_of(rows, RiseCredit(), pad_id=0, multiple=7)
    count = len(batch["advantages"])
    assert count % 7 == 0 and count - len(rows) < 7 and len({len(v) for v in batch.values() if v.dim()}) == 1
    for i, row in enumerate(rows):
        assert batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist() == row.segment.prompt_ids
        seen = batch["completion_mask"][i].bool()
        assert batch["completion_ids"][i][seen].tolist() == row.segment.completion_ids
        assert batch["tool_mask"][i][seen].tolist() == row.segment.own_mask_T
    assert batch["advantages"][len(rows):].abs().sum() == 0 and batch["tool_mask"][len(rows):].sum() == 0
    assert batch["num_items_in_batch"] == sum(row.score.tokens for row in rows)
    plain = advantages([row.score for row in rows], RiseCredit())
    total = sum(row.score.tokens for row in rows)
    expected = [a * row.score.tokens / total * count for a, row in zip(plain, rows, strict=True)]
    assert batch["advantages"][:len(rows)].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("switches, micro_batches", [
    ({}, 1), ({}, 4), ({"aggregate": "row_mean", "scale": "mean_std", "curate_weight": 0.5}, 1)])
def test_gradient_is_that_of_the_hand_written_loss(tmp_path, switches, micro_batches):
    credit, model, trials = RiseCredit(**switches), tiny_model(gain=2.0), made_trials(failed={(0, 1, 1)})
    expected = hand_written_gradient(model, trials, credit)
    _, recorder = train(tmp_path, lambda chains, step: trials, model=model, credit=credit, micro_batches=micro_batches)
    assert_close(recorder.gradients[0], expected)


def test_observations_are_context_and_not_trained(tmp_path):
    gradients = [train(tmp_path / str(i), lambda chains, step, tail=tail: made_trials(tail=tail))[1].gradients[0]
                 for i, tail in enumerate([(7, 8, 9), (150, 3, 21)])]       # after the last reply: no own token reads them
    for name in gradients[0]:
        assert torch.allclose(*(g[name] for g in gradients), atol=1e-6), name


def test_the_trainer_plays_the_sequences_of_its_steps_in_order(tmp_path):
    played = []

    def play(chains, step):
        played.append((step, [c.scenario_id for c in chains], chains[0].task_ids))
        return made_trials(chains, [SOLVED[0]] * len(chains), seed=step)

    train(tmp_path, play, steps=2)
    assert played == [(0, ["red", "blue"], CHAINS[0].task_ids), (1, ["red", "blue"], CHAINS[0].task_ids)]


def test_equal_outcomes_move_nothing(tmp_path):
    trials = made_trials(solved=[[[1, 1, 1]] * 4] * 2)
    before = tiny_model(gain=2.0)
    after, _ = train(tmp_path, lambda chains, step: trials, model=copy.deepcopy(before),
                     credit=RiseCredit(solve_penalty=0.0, curate_penalty=0.0))
    assert all(torch.equal(a, b) for a, b in zip(before.state_dict().values(), after.state_dict().values(), strict=True))


def test_rollout_and_trainer_fit_together(tmp_path):
    """Real trials of an untrained model: nothing is ever solved, and rows differ at most by their penalties."""
    model, format, seen = tiny_model(gain=2.0), tiny_format(), []
    budgets = Budgets(max_context=500, reply_tokens=8, writer_tokens=24, document_tokens=8, trajectory_tokens=100)
    policy = CachedPolicy(model, format.end_ids, 0)

    def play(chains, step):
        settings = LoopSettings(budgets=budgets, max_turns=2)
        trials = play_trials(chains, 2, policy, FakeTextWorld(), format, settings, seed=step)
        seen.extend(training_rows(trials, RiseCredit()))
        return trials

    train(tmp_path, play, model=model, copies=2, chains=[sequence("red", 1, 2), sequence("blue", 1, 2)])
    assert len(seen) == 2 * 2 * 3 and {row.score.value for row in seen} == {0.0}
    assert set(advantages([row.score for row in seen], RiseCredit())) <= {0.0, 0.25, -0.25}


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    def play(chains, step):
        return made_trials(chains, seed=step)

    straight, _ = train(tmp_path / "a", play, steps=2)
    options = {"output_dir": tmp_path / "b", "copies": 4, "sequences_per_step": 2, "learning_rate": 1e-3, "grad_clip": 1e9,
               "bf16": False, "weight_decay": 0.0, "save_steps": 1, "steps": 2}

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    first = make_rise_trainer(tiny_model(gain=2.0), tiny_tokenizer(), CHAINS * 2, play, RiseCredit(), **options)
    first.add_callback(Stop())
    first.train()
    assert first.state.global_step == 1
    model = tiny_model(seed=5)
    second = make_rise_trainer(model, tiny_tokenizer(), CHAINS * 2, play, RiseCredit(), **options)
    second.train(resume_from_checkpoint=True)
    assert all(torch.equal(a, b) for a, b in zip(straight.state_dict().values(), model.state_dict().values(), strict=True))


def test_a_step_without_any_row_says_so():
    with pytest.raises(RuntimeError, match="no row of this step"):
        batch_of([], RiseCredit(), 0)


def test_counts_that_do_not_match_are_refused(tmp_path):
    options = {"output_dir": tmp_path, "copies": 4, "sequences_per_step": 2, "learning_rate": 1e-3}
    arguments = (tiny_model(), tiny_tokenizer())
    with pytest.raises(ValueError, match="2 sequences given, 2 steps of 2 need 4"):
        make_rise_trainer(*arguments, CHAINS, lambda *a: [], RiseCredit(), steps=2, **options)
    with pytest.raises(ValueError, match="step 1 plays a sequence twice"):
        make_rise_trainer(*arguments, [CHAINS[0]] * 2, lambda *a: [], RiseCredit(), steps=1, **options)
    with pytest.raises(ValueError, match="micro_batches 3 does not divide the 8 trials"):
        make_rise_trainer(*arguments, CHAINS, lambda *a: [], RiseCredit(), steps=1, micro_batches=3, **options)
