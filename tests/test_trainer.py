"""SAGE through the real TRL trainer on a 0.1M model: advantages, gradient, masks, failures of ours, resuming."""
import copy
import json
import random

import pytest
import torch
from fakes import FakeWorld, chain, tiny_format, tiny_model, tiny_tokenizer
from transformers import TrainerCallback

from sagelib import credit
from sagelib.policy import CachedPolicy
from sagelib.rollout import RolloutSettings, rollout
from sagelib.trainer import ChainGRPOTrainer, make_trainer, pack, position_major
from sagelib.trainer import train as train_run
from sagelib.types import ChainRun, Episode, Segment, StopReason

CHAINS = [chain("s_1", "s_2"), chain("t_1", "t_2")]
# fractions[chain][position][copy]; the first chain's are the golden vectors of the paper
GOLDEN = [[[1, 1, 1, 0.5], [1, 1, 0, 1]], [[0.1, 0.7, 0.7, 0.2], [0.3, 0.3, 0.3, 0.3]]]
EQUAL = [[[5 / 7] * 3, [0.9] * 3]]            # the float32 mean of these is not their value
UNUSED = frozenset()


class Recorder(TrainerCallback):
    """Gradients as the optimizer is about to see them."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def made_runs(chains, fractions, seed=0, used=UNUSED, failed=UNUSED, tail=()):
    """Finished runs with random ids: two replies around one observation, then ``tail`` as a trailing observation."""
    rng = random.Random(seed)

    def some(low, high):
        return [rng.randrange(3, 200) for _ in range(rng.randint(low, high))]

    runs = []
    for c, task_chain in enumerate(chains):
        for g in range(len(fractions[c][0])):
            run = ChainRun(task_chain, g)
            for k, task_id in enumerate(task_chain.task_ids):
                segment = Segment(some(3, 9), position=k)
                for ids, own in ((some(2, 9), True), (some(1, 5), False), (some(1, 9), True), (list(tail), False)):
                    segment.append(ids, own=own)
                episode = Episode(task_id, task_chain.scenario_id, k, "", segment, fraction=fractions[c][k][g])
                episode.skills_made = ("f",) if k == 0 else ()
                episode.skills_called = ("f",) if (c, k, g) in used else ()
                if (c, k, g) in failed:
                    episode.stop, episode.fraction = StopReason.env_failure, None
                run.episodes.append(episode)
            runs.append(run)
    return runs


def train(tmp_path, play, *, model=None, chains=CHAINS, copies=4, steps=1, resume=False, **options):
    """Train; returns (model, recorder, advantages by completion ids)."""
    model = model or tiny_model(gain=2.0)
    settings = {"credit_name": "outcome", "learning_rate": 1e-3, "grad_clip": 1e9, "bf16": False, **options}
    trainer = make_trainer(model, tiny_tokenizer(), list(chains) * steps, play, output_dir=tmp_path, copies=copies,
                           chains_per_step=len(chains), steps=steps, **settings)
    recorder, advantages, stock = Recorder(), {}, trainer.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        columns = (inputs["completion_ids"], inputs["completion_mask"], inputs["advantages"])
        for ids, mask, advantage in zip(*columns, strict=True):
            advantages[tuple(ids[mask.bool()].tolist())] = float(advantage)
        return stock(model, inputs, *args, **kwargs)

    trainer.compute_loss = compute_loss
    trainer.add_callback(recorder)
    trainer.train(resume_from_checkpoint=resume or None)
    return model, recorder, advantages


def paper_gradient(model, runs, returns, copies, temperature=1.0):
    """Gradient of -mean_chains (1/G) sum_i sum_k (1/|o|) sum_t logp A: the paper's loss on policy (ratio 1)."""
    model = copy.deepcopy(model).train()
    chains = len(runs) // copies
    loss = torch.zeros(())
    for c in range(chains):
        group = runs[c * copies:(c + 1) * copies]
        for k in range(len(group[0].episodes)):
            scored = [returns[c][k][i] for i in range(copies) if returns[c][k][i] is not None]
            for i, run in enumerate(group):
                if returns[c][k][i] is None:
                    continue
                advantage = returns[c][k][i] - sum(scored) / len(scored)
                segment = run.episodes[k].segment
                logits = model(torch.tensor([segment.ids])).logits[0, len(segment.prompt_ids) - 1:-1]
                ids = segment.completion_ids
                logprobs = (logits / temperature).log_softmax(-1)[range(len(ids)), ids]
                own = torch.tensor(segment.own_mask_T)
                loss = loss - advantage * (logprobs * own).sum() / own.sum() / copies / chains
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_close(got, expected, tolerance=1e-6):
    assert got.keys() == expected.keys()
    for name in expected:
        assert (got[name] - expected[name]).abs().max() < tolerance, name
    assert max(float(g.abs().max()) for g in expected.values()) > 100 * tolerance     # the comparison says something


def equal_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


# ---- what TRL is given

def test_pack_puts_groups_of_one_chain_and_position_next_to_each_other():
    runs = made_runs(CHAINS, GOLDEN, used={(0, 1, 0), (0, 1, 2), (0, 1, 3)})
    batch = pack(runs, 4, credit.skill_integrated, pad_id=0)
    assert batch["chain_return"] == [2, 1, 1, 0.5, 2, 1, 0, 2, 0.1, 0.7, 0.7, 0.2, 0.3, 0.3, 0.3, 0.3]
    order = position_major(runs, 4)
    assert [(r.chain.scenario_id, e.position, r.copy) for r, e in order] == [
        (s, k, g) for s in "st" for k in (0, 1) for g in range(4)]
    assert batch["completion_ids"] == [e.segment.completion_ids for _, e in order]
    assert batch["env_mask"] == [e.segment.own_mask_T for _, e in order]
    assert batch["logprobs"] is None                       # on-policy: TRL's own log-probabilities, ratio exactly 1


def test_an_episode_without_a_reply_is_one_masked_token():
    runs = made_runs([chain("s_1")], [[[0.5]]])
    runs[0].episodes[0].segment = Segment([5, 6, 7])
    batch = pack(runs, 1, credit.outcome, pad_id=0)
    assert (batch["prompt_ids"], batch["completion_ids"], batch["env_mask"]) == ([[5, 6, 7]], [[0]], [[0]])


# ---- one step

def test_advantages_are_relative_to_the_mean_of_chain_and_position(tmp_path):
    runs = made_runs(CHAINS, GOLDEN, used={(0, 1, 0), (0, 1, 2), (0, 1, 3)})
    _, _, got = train(tmp_path, lambda chains, step: runs, credit_name="skill_integrated")
    expected = [[0.875, -0.125, -0.125, -0.625], [0.75, -0.25, -1.25, 0.75],
                [-0.325, 0.275, 0.275, -0.225], [0.0, 0.0, 0.0, 0.0]]
    flat = [a for group in expected for a in group]
    for (_, episode), advantage in zip(position_major(runs, 4), flat, strict=True):
        assert got[tuple(episode.segment.completion_ids)] == pytest.approx(advantage, abs=1e-6)


@pytest.mark.parametrize("temperature, micro_batches", [(1.0, 1), (0.7, 1), (1.0, 4)])
def test_gradient_is_the_papers_sum_over_positions(tmp_path, temperature, micro_batches):
    runs, model = made_runs(CHAINS, GOLDEN), tiny_model(gain=2.0)
    expected = paper_gradient(model, runs, GOLDEN, 4, temperature)
    _, recorder, _ = train(tmp_path, lambda chains, step: runs, model=model, temperature=temperature,
                           micro_batches=micro_batches)
    assert_close(recorder.gradients[0], expected)


def test_chains_of_one_are_plain_grpo(tmp_path):
    chains, fractions = [chain("s_1"), chain("t_1")], [[[1, 0, 0.5]], [[0.2, 0.4, 0.9]]]
    runs, model = made_runs(chains, fractions), tiny_model(gain=2.0)
    expected = paper_gradient(model, runs, fractions, 3)
    _, recorder, _ = train(tmp_path, lambda chains, step: runs, model=model, chains=chains, copies=3)
    assert_close(recorder.gradients[0], expected)


def test_gradient_is_clipped(tmp_path):
    runs, model = made_runs(CHAINS, GOLDEN), tiny_model(gain=2.0)
    whole = paper_gradient(model, runs, GOLDEN, 4)
    norm = float(torch.stack([g.norm() for g in whole.values()]).norm())
    _, recorder, _ = train(tmp_path, lambda chains, step: runs, model=model, grad_clip=norm / 10)
    assert_close(recorder.gradients[0], {name: g / 10 for name, g in whole.items()})


def test_embeddings_stay_and_the_rest_has_the_same_gradient_when_they_are_not_trained(tmp_path):
    runs, model = made_runs(CHAINS, GOLDEN), tiny_model(gain=2.0)
    expected, before = paper_gradient(model, runs, GOLDEN, 4), copy.deepcopy(model)
    _, recorder, _ = train(tmp_path, lambda chains, step: runs, model=model, train_embeddings=False)
    del expected["model.embed_tokens.weight"]
    assert_close(recorder.gradients[0], expected)
    for (name, a), b in zip(before.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b) == (name == "model.embed_tokens.weight"), name


def test_the_learning_rate_falls_to_zero_with_the_linear_schedule(tmp_path):
    rates = []

    class Rates(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
            rates.append(optimizer.param_groups[0]["lr"])

    runs = made_runs(CHAINS, GOLDEN)
    trainer = make_trainer(tiny_model(), tiny_tokenizer(), CHAINS * 4, lambda chains, step: runs, output_dir=tmp_path, copies=4,
                           chains_per_step=len(CHAINS), steps=4, credit_name="outcome", learning_rate=1e-3, bf16=False,
                           schedule="linear")
    trainer.add_callback(Rates())
    trainer.train()
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_observation_tokens_do_not_change_the_loss(tmp_path):
    gradients = []
    for i, tail in enumerate(([7, 8, 9], [150, 3, 21])):
        runs = made_runs(CHAINS, GOLDEN, tail=tail)
        gradients.append(train(tmp_path / str(i), lambda chains, step, runs=runs: runs)[1].gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def test_equal_rewards_give_exactly_zero_gradient(tmp_path):
    before, chains = tiny_model(gain=2.0), [CHAINS[0]]
    after, recorder, advantages = train(tmp_path, lambda cs, step: made_runs(cs, EQUAL), chains=chains, copies=3)
    assert len(advantages) == 6 and set(advantages.values()) == {0.0}
    assert all(float(g.abs().max()) == 0 for g in recorder.gradients[0].values())
    assert equal_weights(before, after)


def test_a_failure_of_ours_leaves_the_mean(tmp_path):
    failed = {(0, 0, 1), (1, 1, 0), (1, 1, 1), (1, 1, 2)}       # one of four; three of four, so that one is left
    returns = [[[None if (c, k, g) in failed else r for g, r in enumerate(group)] for k, group in enumerate(groups)]
               for c, groups in enumerate(GOLDEN)]
    runs, model = made_runs(CHAINS, GOLDEN, failed=failed), tiny_model(gain=2.0)
    expected = paper_gradient(model, runs, returns, 4)
    _, recorder, got = train(tmp_path, lambda chains, step: runs, model=model)
    assert_close(recorder.gradients[0], expected)
    flat = [credit.group_advantages(group) for groups in returns for group in groups]
    for (_, episode), advantage in zip(position_major(runs, 4), sum(flat, []), strict=True):
        assert got[tuple(episode.segment.completion_ids)] == pytest.approx(advantage, abs=1e-6)


# ---- several steps

class Interrupted(RuntimeError):
    pass


def player(model, seen, stop_at=None, copies=3):
    """Samples one reply per task from the model that is being trained; r = share of even ids."""
    policy = CachedPolicy(model, frozenset({2}), 0)

    def play(chains, step):
        if step == stop_at:
            raise Interrupted
        seen.append((step, [c.scenario_id for c in chains]))
        assert not model.training
        runs = [ChainRun(c, g) for c in chains for g in range(copies)]
        for k in range(2):
            prompts = [[10 + k, 20, 30 + g] for g in range(len(runs))]
            samples = policy.start(prompts, seed=100 * step + k).generate(range(len(runs)), 8)
            for run, prompt, sample in zip(runs, prompts, samples, strict=True):
                segment = Segment(prompt, position=k)
                segment.append(sample.ids, own=True, logprobs=sample.logprobs)
                share = sum(i % 2 == 0 for i in sample.ids) / len(sample.ids)
                run.episodes.append(Episode("x", run.chain.scenario_id, k, "", segment, fraction=share))
        return runs
    return play


@pytest.mark.parametrize("micro_batches, bf16", [(1, False), (2, True)])   # the second is the product's setting
def test_a_resumed_run_ends_in_bitwise_equal_weights(tmp_path, micro_batches, bf16):
    chains = [chain(f"{s}_1", f"{s}_2") for s in "abc"]

    def run(path, stop_at=None, resume=False):
        model, seen = tiny_model(gain=2.0), []
        trainer = make_trainer(model, tiny_tokenizer(), chains, player(model, seen, stop_at), output_dir=path, copies=3,
                               chains_per_step=1, steps=3, save_steps=1, credit_name="outcome", learning_rate=1e-2,
                               weight_decay=0.01, micro_batches=micro_batches, bf16=bf16)
        try:
            trainer.train(resume_from_checkpoint=resume or None)
        except Interrupted:
            pass
        return model, seen

    straight, seen = run(tmp_path / "straight")
    assert seen == [(0, ["a"]), (1, ["b"]), (2, ["c"])]
    first, seen_first = run(tmp_path / "broken", stop_at=2)
    assert seen_first == seen[:2] and not equal_weights(first, straight)
    second, seen_second = run(tmp_path / "broken", resume=True)
    assert seen_second == seen[2:]                                   # no chain is played twice, none is skipped
    assert equal_weights(second, straight)


def test_train_goes_on_from_the_newest_checkpoint_and_drops_later_records(tmp_path):
    chains = [chain(f"{s}_1", f"{s}_2") for s in "abcd"]

    class Run:
        dir, rewound = tmp_path, []

        def rewind(self, step):
            self.rewound.append(step)

    def start(steps, stop_at=None):
        model = tiny_model(gain=2.0)
        play = player(model, [], stop_at)

        def recorded(chains, step):
            with open(tmp_path / "episodes.jsonl", "a") as file:
                file.write(f'{{"step": {step + 1}}}\n')
            return play(chains, step)

        return make_trainer(model, tiny_tokenizer(), chains[:steps], recorded, output_dir=tmp_path / "checkpoints",
                            copies=3, chains_per_step=1, steps=steps, save_steps=2, credit_name="outcome",
                            learning_rate=1e-3, bf16=False)

    with pytest.raises(Interrupted):
        train_run(start(4, stop_at=3), Run())                        # three steps done, the checkpoint holds two
    with open(tmp_path / "episodes.jsonl", "a") as file:
        file.write('{"step": 4, "cut off')
    trainer = start(4)
    train_run(trainer, Run())
    assert Run.rewound == [0, 2] and trainer.state.global_step == 4
    steps = [json.loads(line)["step"] for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_learning_raises_the_return(tmp_path):
    model, logs = tiny_model(gain=1.0), []
    play = player(model, [], copies=16)
    trainer = make_trainer(model, tiny_tokenizer(), [CHAINS[0]] * 12, play, output_dir=tmp_path, copies=16,
                           chains_per_step=1, steps=12, credit_name="outcome", learning_rate=1e-2, bf16=False,
                           log=lambda **entry: logs.append(entry))
    trainer.train()
    assert [entry["step"] for entry in logs] == list(range(1, 13))
    rewards = [entry["reward"] for entry in logs]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_rollout_and_trainer_fit_together(tmp_path):
    """A real rollout of an untrained model: no block is ever written, so every return is -1 and nothing moves."""
    before, model = tiny_model(gain=2.0), tiny_model(gain=2.0)
    format, world = tiny_format(), FakeWorld({t: ["a"] for c in CHAINS for t in c.task_ids})
    policy = CachedPolicy(model, format.end_ids, 0)
    settings = RolloutSettings(max_turns=2, max_tokens_per_turn=300, max_context=512)
    play_step = []

    def play(chains, step):
        runs = rollout(chains, 2, policy, world, format, settings, seed=step)
        play_step.extend(e.stop for r in runs for e in r.episodes)
        return runs

    after, _, advantages = train(tmp_path, play, model=model, copies=2)
    assert set(play_step) <= {StopReason.no_code, StopReason.max_tokens} and StopReason.no_code in play_step
    assert all(abs(a) in (0.0, 0.75) for a in advantages.values())          # -1 against r = 1/2, within a group of two
    assert equal_weights(before, after) == (set(advantages.values()) == {0.0})


# ---- refusals

def test_a_step_that_does_not_hold_whole_chains_is_refused(tmp_path):
    trainer = make_trainer(tiny_model(), tiny_tokenizer(), CHAINS, lambda *a: [], output_dir=tmp_path, copies=4,
                           chains_per_step=2, steps=1, credit_name="outcome", learning_rate=1e-3, bf16=False)
    assert isinstance(trainer, ChainGRPOTrainer)
    trainer.chain_length = 3
    with pytest.raises(ValueError, match="step of 16 sequences .* K\\*G = 12"):
        trainer.train()


def test_counts_that_do_not_match_are_refused(tmp_path):
    options = {"output_dir": tmp_path, "copies": 4, "chains_per_step": 2, "credit_name": "outcome",
               "learning_rate": 1e-3}
    with pytest.raises(ValueError, match="micro_batches 3 does not divide the 16"):
        make_trainer(tiny_model(), tiny_tokenizer(), CHAINS, lambda *a: [], steps=1, micro_batches=3, **options)
    with pytest.raises(ValueError, match="2 chains given, 2 steps of 2 need 4"):
        make_trainer(tiny_model(), tiny_tokenizer(), CHAINS, lambda *a: [], steps=2, **options)
    mixed = [chain("s_1", "s_2"), chain("t_1")]
    with pytest.raises(ValueError, match="equal length"):
        make_trainer(tiny_model(), tiny_tokenizer(), mixed, lambda *a: [], steps=1, **options)
