"""Adapters, saved policies and the agreement of sampler and trainer, on a 0.1M model in the place of a pre-trained one.

The real 135M model goes the same way in test_smollm.py.
"""
import copy
import json

import pytest
import torch
from fakes import FakeWorld, ReplayPolicy, chain, tiny_format, tiny_model, tiny_tokenizer
from peft import PeftModel

from sagelib import lora, mismatch, policies, pretrained, sft, tiny, worked
from sagelib.chat import LLMFormat
from sagelib.policy import CachedPolicy
from sagelib.prompts import user_message
from sagelib.rollout import RolloutSettings, rollout
from sagelib.trainer import make_trainer

CHAINS = [chain("s_1", "s_2")]
WANTED = {"s_1": ["a"], "s_2": ["b"]}
DEMO = [{"role": "user", "content": "Demo"}, {"role": "assistant", "content": "```python\n1\n```"}]
ROW = {"task_id": "s_1", "prompt": user_message("Write.", {}), "turns": [
    {"text": "A bad block.\n```python\nx(\n```", "observation": "SyntaxError", "trained": False},
    {"text": "I write.\n```python\napis.notes.add(text=\"a\")\n```", "observation": "OK", "trained": True},
    {"text": "Done.\n```python\napis.supervisor.complete_task()\n```", "observation": "OK", "trained": True}]}


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A directory with a "pre-trained" model; returns its name."""
    model = tiny_model(gain=2.0)
    tiny.save_policy(tmp_path / "base", model, tiny_tokenizer())
    return str(tmp_path / "base")


def started(base):
    model, tokenizer = pretrained.load(base)
    return model, LLMFormat(tokenizer, base=base, rules="Rules", demo=DEMO)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def frozen(model):
    """The base model's weights under their own names."""
    return {n.removeprefix("base_model.model.").replace(".base_layer", ""): p for n, p in weights(model).items()
            if "lora_" not in n}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- models by name

def test_a_model_that_is_not_there_is_named_with_the_fix(monkeypatch, tmp_path):
    assert pretrained.find("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"
    for wrong in ("./nothing", "qwen", "/a/b"):
        with pytest.raises(FileNotFoundError, match="no directory with a config.json, and no hub name"):
            pretrained.find(wrong)
    monkeypatch.setattr(pretrained, "VENVS", tmp_path)
    with pytest.raises(FileNotFoundError, match="workbench setup --profile smollm"):
        pretrained.find("smollm")


# ---- supervised fine-tuning of an adapter

def test_only_the_adapter_learns_and_only_from_the_trained_replies(base, tmp_path):
    model, format = started(base)
    before = weights(model)
    model = lora.attach(model, rank=4, alpha=8, seed=0)
    example = sft.encode_demonstration(format, ROW)
    learned = [t for t in example["labels"] if t != -100]
    assert format.tokenizer.decode(learned) == "".join(t["text"] + "<|im_end|>" for t in ROW["turns"][1:])
    losses = []
    loss = lora.fine_tune(model, format, [example] * 12, output_dir=tmp_path / "c", batch=2, learning_rate=1e-2, seed=0,
                          bf16=False, log=lambda step, loss, learning_rate: losses.append(loss))
    assert len(losses) == 6 and losses[-1] == pytest.approx(loss) and losses[-1] < losses[0] - 0.1
    assert same(frozen(model), before)
    with torch.no_grad():                                                    # the first loss is that of the base model, by hand
        base_model, _ = pretrained.load(base)
        logits = base_model(torch.tensor([example["input_ids"]])).logits[0, :-1].log_softmax(-1)
    labels = torch.tensor(example["labels"])[1:]
    own = labels != -100
    assert losses[0] == pytest.approx(-float(logits[own].gather(1, labels[own][:, None]).mean()), abs=1e-4)


def test_a_new_adapter_changes_nothing_and_equal_seeds_give_equal_ones(base):
    model, format = started(base)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        plain = model(ids).logits
        adapted = [lora.attach(pretrained.load(base)[0], 4, 8, seed) for seed in (0, 0, 1)]
        assert all(torch.equal(m(ids).logits, plain) for m in adapted)
    assert same(weights(adapted[0]), weights(adapted[1])) and not same(weights(adapted[0]), weights(adapted[2]))
    assert lora.attach(model, 0, 8, 0) is model and lora.attach(adapted[0], 4, 8, 0) is adapted[0]


def test_demonstrations_that_are_too_long_are_left_out_not_cut():
    examples = [{"input_ids": [1] * n, "labels": [1] * n} for n in (5, 9, 7)]
    assert [len(e["input_ids"]) for e in lora.fitting(examples, 7)] == [5, 7]
    with pytest.raises(ValueError, match=r"max_length = 4 tokens \(the shortest has 5\); raise max_length"):
        lora.fitting(examples, 4)


# ---- policies on disk

def test_an_adapter_reloads_with_its_prompt_and_names_no_place_of_this_machine(base, tmp_path, monkeypatch):
    model, format = started(base)
    format.base = "smollm"
    model = lora.attach(model, 4, 8, 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    place = policies.save(tmp_path / "policy", model, format)
    assert not (place / "config.json").exists() and str(tmp_path) not in (place / "adapter_config.json").read_text()
    assert json.loads((place / "prompt.json").read_text())["base"] == "smollm"
    monkeypatch.setattr(pretrained, "find", lambda name: base if name == "smollm" else pytest.fail(name))
    again, format_again = policies.load(place)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert format_again.prompt_ids(ROW["prompt"]) == format.prompt_ids(ROW["prompt"]) and format_again.end_ids == format.end_ids
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {n for n, _ in again.named_parameters() if "lora_" in n}
    assert policies.describe(place) == "smollm + LoRA of rank 4"


def test_whole_weights_the_base_itself_and_the_laptop_s_policy_reload_too(base, tmp_path):
    model, format = started(base)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_input_embeddings().weight.add_(1.0)
    for name, saved, expected in (("base", None, model), ("full", changed, changed)):
        again, format_again = policies.load(policies.save(tmp_path / name / "p", saved, format))
        assert same(weights(again), weights(expected)) and format_again.demo == DEMO
    own, own_format = policies.load(policies.save(tmp_path / "own", model, tiny_format()))
    assert same(weights(own), weights(model)) and type(own_format).__name__ == "ChatFormat"


# ---- sampler and trainer

def sampled(model, format, temperature=0.8):
    policy = CachedPolicy(model, format.end_ids, format.tokenizer.pad_token_id, temperature)
    settings = RolloutSettings(max_turns=3, max_tokens_per_turn=12, max_context=1000)
    runs = rollout([chain("s_1")], 3, policy, FakeWorld(WANTED), format, settings, seed=0)
    return [run.episodes[0].segment for run in runs]


def test_agreement_is_rounding_and_stale_weights_raise_the_alarm(base):
    model, format = started(base)
    segments = sampled(model, format)
    found = mismatch.measure(model, segments, temperature=0.8)
    assert found["mismatch_max"] < 1e-4 and abs(found["mismatch_kl"]) < 1e-8 and found["ratio_max"] < 1.0001
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    with pytest.warns(UserWarning, match="sampler and trainer disagree"):
        stale = mismatch.measure(model, segments, temperature=0.8)
    assert stale["mismatch_max"] > mismatch.ALARM and stale["mismatch_kl"] > 0
    assert mismatch.measure(model, []) is None


def test_observations_do_not_count(base):
    model, format = started(base)
    policy = ReplayPolicy(format, lambda position, row, turn: ROW["turns"][turn + 1]["text"])
    settings = RolloutSettings(max_tokens_per_turn=500, max_context=5000)
    [run] = rollout([chain("s_1")], 1, policy, FakeWorld(WANTED), format, settings, 0)
    segment = run.episodes[0].segment
    mine = mismatch.logprobs_of(model, segment)
    assert len(mine) == segment.generated < len(segment.completion_ids)
    with torch.no_grad():
        logprobs = model(torch.tensor([segment.ids])).logits[0].log_softmax(-1)
    places = [i for i, own in enumerate(segment.own_mask_T) if own]
    expected = [float(logprobs[len(segment.prompt_ids) + i - 1, segment.completion_ids[i]]) for i in places]
    assert mine == pytest.approx(expected, abs=1e-5)


def test_a_sage_step_moves_the_adapter_alone_and_logs_the_agreement(base, tmp_path):
    model, format = started(base)
    before = weights(model)
    model = lora.attach(model, 4, 8, 0)
    adapter = {n: p for n, p in weights(model).items() if "lora_" in n}
    texts = {0: [t["text"] for t in ROW["turns"][1:]], 1: ["no block at all"]}   # two copies that differ in their return
    logged = []

    def play(chains, step):
        policy = ReplayPolicy(format, lambda position, row, turn: texts[row % 2][turn])
        settings = RolloutSettings(max_tokens_per_turn=500, max_context=5000)
        return rollout(chains, 2, policy, FakeWorld(WANTED), format, settings, seed=0)

    trainer = make_trainer(model, format.tokenizer, CHAINS, play, output_dir=tmp_path / "c", copies=2, chains_per_step=1,
                           credit_name="outcome", steps=1, learning_rate=1e-2, bf16=False, train_embeddings=False,
                           agreement_rows=2, log=lambda **row: logged.append(row))
    with pytest.warns(UserWarning, match="disagree"):                        # replayed replies have made-up log-probabilities
        trainer.train()
    after = weights(model)
    assert same(frozen(model), before)
    assert any(not torch.equal(after[n], p) for n, p in adapter.items())
    assert logged[-1]["mismatch_max"] > 1 and logged[-1]["ratio_max"] > 0
    assert isinstance(model, PeftModel) and list((tmp_path / "c").glob("checkpoint-1/adapter_model.safetensors"))


# ---- the worked demonstration

def test_the_look_ups_read_what_the_expert_calls():
    expert = {"helpers": [{"source": "def login(app):\n    apis.supervisor.show_account_passwords()"}], "answer": None,
              "main": {"name": "w", "source": "def w(x):\n    apis.spotify.like_song(song_id=x)", "call": "w(1)"}}
    replies = worked.look_ups(expert)
    assert ["print(apis.api_docs.show_app_descriptions())" in replies[0], "(app_name='spotify')" in replies[1],
            "(app_name='spotify', api_name='like_song')" in replies[2]] == [True] * 3
    with pytest.raises(ValueError, match="calls no app"):
        worked.look_ups({"helpers": [], "main": {"name": "w", "source": "def w(): 1", "call": "w()"}})
