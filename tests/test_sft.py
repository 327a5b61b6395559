"""Supervised fine-tuning: which tokens are trained, the ids against the rollout's, the schedule, and the tokenizer."""
import copy
import math

import pytest
import torch
from fakes import FakeWorld, chain, tiny_format, tiny_model, tiny_tokenizer

from sagelib.policy import ScriptedPolicy
from sagelib.prompts import ChatFormat, observation, reply, user_message
from sagelib.rollout import RolloutSettings, rollout
from sagelib.sft import IGNORED, encode_demonstration, encode_pair, fine_tune, schedule
from sagelib.tiny import load_policy, make_model, save_policy

FORMAT = tiny_format()
TURNS = [{"text": reply("one", "boom"), "observation": "NameError: boom", "trained": False},
         {"text": reply("two", "x = 1"), "observation": "OK", "trained": True},
         {"text": reply("three", "y = 2"), "observation": "OK", "trained": True}]
ROW = {"task_id": "s_1", "prompt": user_message("Do it.", {}), "turns": TURNS}


# ---- labels

def test_only_trained_replies_with_their_end_token_have_labels():
    example = encode_demonstration(FORMAT, ROW)
    ids, labels = example["input_ids"], example["labels"]
    assert len(ids) == len(labels) and all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    replies = [FORMAT.encode(turn["text"]) + [FORMAT.end_id] for turn in TURNS]
    tails = [FORMAT.observation_ids(turn["observation"], closed=True) for turn in TURNS[:2]]
    prompt = FORMAT.prompt_ids(ROW["prompt"])
    assert ids == prompt + replies[0] + tails[0] + replies[1] + tails[1] + replies[2]
    skipped = len(prompt + replies[0] + tails[0])
    assert labels == [IGNORED] * skipped + replies[1] + [IGNORED] * len(tails[1]) + replies[2]
    assert labels[-1] == FORMAT.end_id


def test_a_demonstration_without_a_trained_turn_is_refused():
    with pytest.raises(ValueError, match="s_1 has no trained token"):
        encode_demonstration(FORMAT, {**ROW, "turns": TURNS[:1]})


def test_pairs_have_their_own_role():
    example = encode_pair(FORMAT, {"text": "notes of Maria", "code": "pages(x)"})
    target = FORMAT.encode("pages(x)") + [FORMAT.end_id]
    assert [i for i in example["labels"] if i != IGNORED] == target == example["input_ids"][-len(target):]
    assert FORMAT.tokenizer.decode(example["input_ids"]).startswith("<|im_start|>pair\nnotes of Maria<|im_end|>")


def test_a_pair_after_its_look_up_has_the_ids_of_an_episode():
    pair = {"kind": "after", "text": "the tag in my note", "thought": "I act.", "code": "go(1)",
            "look_thought": "I need the tag.", "look_up": "print(read())", "shown": 'The tag is "x".'}
    turns = [{"text": reply("I need the tag.", "print(read())"), "observation": 'The tag is "x".', "trained": False},
             {"text": reply("I act.", "go(1)"), "observation": "OK", "trained": True}]
    example, episode = encode_pair(FORMAT, pair), encode_demonstration(FORMAT, {"prompt": pair["text"], "turns": turns})
    start, other = (FORMAT.prompt_ids(pair["text"], role=role) for role in ("pair", "user"))
    assert example["input_ids"] == start + episode["input_ids"][len(other):]
    assert example["labels"] == [IGNORED] * len(start) + episode["labels"][len(other):]


def test_a_demonstration_has_the_ids_of_the_rollout():
    done = reply("done", "apis.supervisor.complete_task()")
    texts = [reply("one", "boom"), reply("two", "print(apis.notes.all())"), done]
    policy = ScriptedPolicy(FORMAT, lambda row, turn, ids: texts[turn])
    settings = RolloutSettings(max_tokens_per_turn=400, max_context=4000)
    [run] = rollout([chain("s_1")], 1, policy, FakeWorld({"s_1": ["a"]}), FORMAT, settings, seed=0)
    episode = run.episodes[0]
    turns = [{"text": t.text, "observation": t.observation, "trained": True} for t in episode.turns]
    example = encode_demonstration(FORMAT, {"prompt": user_message(episode.instruction, {}), "turns": turns})
    assert [t.text for t in episode.turns] == texts
    assert example["input_ids"] == episode.segment.ids
    trained = [int(label != IGNORED) for label in example["labels"][len(episode.segment.prompt_ids):]]
    assert trained == episode.segment.own_mask_T


# ---- the template

def test_turns_appended_one_by_one_are_the_template_of_the_whole_conversation():
    message = user_message('Write a note that says "Maria Lopez".', {"f": "def f():\n    return 1"})
    messages, ids = [{"role": "user", "content": message}], FORMAT.prompt_ids(message)
    template = FORMAT.tokenizer.apply_chat_template
    for text, seen in [(reply("I write.", "f()"), "NameError: name 'f' is unknown"), (reply("Again.", "g( 1 )"), "OK")]:
        ids = ids + FORMAT.encode(text) + [FORMAT.end_id] + FORMAT.observation_ids(seen, closed=True)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": seen}]
        whole = template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert ids == list(whole)
    ids += FORMAT.encode("bye") + [FORMAT.end_id]
    messages.append({"role": "assistant", "content": "bye"})
    whole = list(template(messages, tokenize=True, return_dict=False))
    assert whole[:len(ids)] == ids and FORMAT.decode(whole[len(ids):]) == "\n"


def test_an_unclosed_reply_is_closed_by_its_observation():
    assert FORMAT.observation_ids("OK", closed=False) == [FORMAT.end_id, *FORMAT.observation_ids("OK", closed=True)]


@pytest.mark.parametrize("output, error, shown", [
    ("", None, "OK"), ("Execution successful.", None, "OK"), (" 12 \n", None, "12"), ("x", "E: y", "E: y"),
    ("abcdef", None, "abcdef"), ("abcdefg", None, "abcde…"),
])
def test_observations(output, error, shown):
    assert observation(output, error, limit=6) == shown


def test_no_library_is_not_an_empty_one():
    assert user_message("Do it.", None) == "Task: Do it."
    assert user_message("Do it.", {}) == "Skills:\nnone\n\nTask: Do it."
    assert user_message("Do it.", {"a": "A", "b": "B"}, rules="R") == "R\n\nSkills:\nA\nB\n\nTask: Do it."


# ---- the tokenizer

@pytest.mark.parametrize("name", ["Maria", "Lopez", "Zoe", "Maria Lopez", "Xavier Quintana"])
def test_a_name_has_equal_tokens_in_prose_and_in_quotes(name):
    tokens = FORMAT.encode(name)
    for text in (f"the note of {name} says", f'add("{name}")', f"'{name}', 'x'", f"{name}\nTask", f"by {name}."):
        ids = FORMAT.encode(text)
        assert any(ids[i:i + len(tokens)] == tokens for i in range(len(ids))), text


@pytest.mark.parametrize("text", ["Ünïcode ☃ and\ttabs", "a  b\n    c", "x_1 = 1234", "", "\x00\u2028", "“quoted” …"])
def test_every_text_survives(text):
    assert FORMAT.decode(FORMAT.encode(text)) == text


def test_digits_are_single_tokens():
    assert len(FORMAT.encode("1204")) == 4


def test_a_saved_policy_comes_back(tmp_path):
    model = make_model(tiny_tokenizer(), width=64, layers=1, heads=1, context=256, seed=3)
    again, tokenizer = load_policy(save_policy(tmp_path / "policy", model, tiny_tokenizer()))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    text = "the note of Maria\n    x = 12"
    assert tokenizer.encode(text, add_special_tokens=False) == FORMAT.encode(text)
    assert tokenizer.eos_token_id == FORMAT.end_id and tokenizer.chat_template == tiny_tokenizer().chat_template
    with pytest.raises(FileNotFoundError, match="02_sft"):
        load_policy(tmp_path)


def test_equal_seeds_make_equal_models():
    a, b, c = (make_model(tiny_tokenizer(), width=64, layers=1, heads=1, seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a) and not all(torch.equal(a[k], c[k]) for k in a)
    with pytest.raises(ValueError, match="100 is not a multiple of heads 3"):
        make_model(tiny_tokenizer(), width=100, heads=3)


# ---- the schedule

def examples(kind, n):
    return [{"input_ids": [kind] * (1 + i % 7), "labels": [kind] * (1 + i % 7)} for i in range(n)]


@pytest.mark.parametrize("steps, pair_steps, share, pairs", [
    (24, 8, 0.25, 8 * 8 + 16 * 2),          # 8 batches of pairs, then 2 of each 8 examples
    (20, 3, 0.5, 3 * 8 + 17 * 4),
    (10, 0, 0.0, 0),
    (10, 10, 0.0, 80),
    (5, 0, 1.0, 40),
])
def test_schedule_keeps_the_share_of_pairs(steps, pair_steps, share, pairs):
    options = {"steps": steps, "batch": 8, "pair_steps": pair_steps, "pair_share": share}
    order = schedule(examples(1, 40), examples(2, 40), seed=0, **options)
    assert len(order) == steps * 8
    assert sum(e["input_ids"][0] == 1 for e in order) == pairs
    for window in range(0, steps * 8, 64):                       # the share holds in every window, not only overall
        part = order[window:window + 64]
        first = window // 8
        wanted = sum(8 if s < pair_steps else round(8 * share) for s in range(first, min(first + 8, steps)))
        assert sum(e["input_ids"][0] == 1 for e in part) == wanted


def test_schedule_batches_are_of_like_length_and_follow_the_seed():
    options = {"steps": 16, "batch": 8, "pair_steps": 4, "pair_share": 0.25}
    one, two, other = (schedule(examples(1, 40), examples(2, 40), seed=s, **options) for s in (0, 0, 1))
    assert one == two != other
    spread = [max(map(len, lengths)) - min(map(len, lengths)) for lengths in
              ([e["input_ids"] for e in one[i:i + 8]] for i in range(0, len(one), 8))]
    assert max(spread) <= 2


def test_pairs_alone_make_a_schedule():
    order = schedule(examples(1, 4), [], steps=3, batch=2, pair_steps=0, pair_share=0.0, seed=0)
    assert len(order) == 6 and {e["input_ids"][0] for e in order} == {1}


# ---- training

def token_loss(model, batch):
    """Mean negative log-likelihood of the labelled tokens, one unpadded sequence after the other."""
    total, count = 0.0, 0
    for example in batch:
        with torch.no_grad():
            logprobs = model(torch.tensor([example["input_ids"]])).logits[0].log_softmax(-1)
        for t, label in enumerate(example["labels"]):
            if label != IGNORED:
                total, count = total - float(logprobs[t - 1, label]), count + 1
    return total / count


def toy_demonstrations():
    rows = []
    for name in ("Maria", "Lopez", "Zoe"):
        turns = [{"text": reply("I write.", f'add("{name}")'), "observation": "OK", "trained": True},
                 {"text": reply("done", "apis.supervisor.complete_task()"), "observation": "OK", "trained": True}]
        rows.append(encode_demonstration(FORMAT, {"prompt": user_message(f"Write {name}.", None), "turns": turns}))
    return rows


def test_the_first_loss_is_that_of_the_labelled_tokens_only(tmp_path):
    model, logs = tiny_model(gain=3.0), []
    batch = [encode_demonstration(FORMAT, ROW), *toy_demonstrations()]
    expected = token_loss(model, batch)
    fine_tune(model, tiny_tokenizer(), batch, output_dir=tmp_path, batch=4, learning_rate=0.0, seed=0, bf16=False,
              log=lambda **entry: logs.append(entry))
    assert logs[0]["step"] == 1 and logs[0]["loss"] == pytest.approx(expected, abs=1e-3)


def test_an_end_token_that_is_also_the_padding_is_trained(tmp_path):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.pad_token = tokenizer.eos_token
    format, model, logs = ChatFormat(tokenizer), tiny_model(gain=3.0), []
    batch = [encode_demonstration(format, ROW), *toy_demonstrations()]     # of unequal length: padded
    ends = [sum(label == format.end_id for label in example["labels"]) for example in batch]
    assert tokenizer.pad_token_id == format.end_id and ends == [2, 2, 2, 2]
    fine_tune(model, tokenizer, batch, output_dir=tmp_path, batch=4, learning_rate=0.0, seed=0, bf16=False,
              log=lambda **entry: logs.append(entry))
    assert logs[0]["loss"] == pytest.approx(token_loss(model, batch), abs=1e-3)


def test_loss_goes_down_and_resuming_a_finished_run_changes_nothing(tmp_path):
    model, demos = make_model(tiny_tokenizer(), width=64, layers=1, heads=1, context=256, seed=0), toy_demonstrations()
    before = token_loss(model, demos)
    order = schedule([], demos, steps=40, batch=4, pair_steps=0, pair_share=0.0, seed=0)
    options = {"output_dir": tmp_path, "batch": 4, "learning_rate": 1e-2, "seed": 0, "bf16": False, "save_steps": 40}
    last = fine_tune(model, tiny_tokenizer(), order, **options)
    after = token_loss(model, demos)
    assert before == pytest.approx(math.log(len(tiny_tokenizer())), abs=0.5)    # an untrained model guesses
    assert after < 0.1 * before and last < 0.2 * before
    fresh = make_model(tiny_tokenizer(), width=64, layers=1, heads=1, context=256, seed=9)
    assert fine_tune(fresh, tiny_tokenizer(), order, **options) == pytest.approx(last)
    assert token_loss(fresh, demos) == pytest.approx(after, abs=1e-5)


def test_an_interrupted_fine_tuning_ends_in_bitwise_equal_weights(tmp_path):
    order = schedule([], toy_demonstrations(), steps=6, batch=2, pair_steps=0, pair_share=0.0, seed=0)
    options = {"batch": 2, "learning_rate": 1e-2, "seed": 0, "bf16": False, "save_steps": 2}

    def start():
        return make_model(tiny_tokenizer(), width=64, layers=1, heads=1, context=256, seed=0)

    class Killed(Exception):
        pass

    def kill(step, **entry):
        if step == 5:
            raise Killed

    straight, broken, resumed = start(), start(), start()
    fine_tune(straight, tiny_tokenizer(), order, output_dir=tmp_path / "straight", **options)
    with pytest.raises(Killed):
        fine_tune(broken, tiny_tokenizer(), order, output_dir=tmp_path / "broken", log=kill, **options)
    steps = []
    options["log"] = lambda step, **entry: steps.append(step)
    fine_tune(resumed, tiny_tokenizer(), order, output_dir=tmp_path / "broken", **options)
    assert steps == [5, 6]
    weights = zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
