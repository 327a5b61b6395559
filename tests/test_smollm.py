"""The real 135M instruct model of a package: it answers, its adapter learns, sampler and trainer agree, all four notebooks run.

Skipped where `./workbench setup --profile smollm` was not run: its download and these tests would take half of the time that all
other tests take together.
"""
import json

import pandas as pd
import pytest
import torch
from conftest import unavailable
from fakes import FakeWorld, chain
from test_llm import ROW, frozen, same, weights

from sagelib import building, datasets, environments, lora, policies, pretrained, sft
from sagelib.chat import LLMFormat
from sagelib.job import execute
from sagelib.policy import CachedPolicy
from sagelib.profiles import PROFILE_WORLD
from sagelib.rollout import RolloutSettings, rollout
from sagelib.runs import read_metrics
from sagelib.trainer import make_trainer
from sagelib.types import StopReason

pytestmark = pytest.mark.timeout(3000)
AGREE = 1e-3    # nats, largest of a step, float32


@pytest.fixture(scope="module")
def smollm():
    """(model, tokenizer) of the package."""
    if not building.stamped(building.VENVS / "smollm", environments.smollm_stamp()):
        pytest.skip("the model is not here; ./workbench setup --profile smollm unpacks it, then these tests run")
    return pretrained.load("smollm")


def test_it_is_the_model_of_the_package_and_answers(smollm):
    model, tokenizer = smollm
    assert model.num_parameters() == 134_515_008 and len(tokenizer) == 49_152
    format = LLMFormat.of_model(tokenizer, model, base="smollm", rules="")
    assert [tokenizer.convert_ids_to_tokens(i) for i in sorted(format.end_ids)] == ["<|im_end|>"] and tokenizer.pad_token_id == 2
    prompt = format.prompt_ids("What is the capital of France?")
    assert tokenizer.decode(prompt).endswith("user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    [sample] = CachedPolicy(model, format.end_ids, 2, temperature=0).start([prompt], 0).generate([0], 16)
    assert "Paris" in format.decode(sample.ids) and sample.finish == "stop"


def test_sft_and_a_sage_step_train_the_adapter_and_it_reloads(smollm, tmp_path):
    model, tokenizer = smollm
    before = weights(model)
    format = LLMFormat.of_model(tokenizer, model, base="smollm", rules="Reply with one ```python block.")
    model = lora.attach(model, 8, 16, 0)
    example, losses = sft.encode_demonstration(format, ROW), []
    lora.fine_tune(model, format, [example] * 2, output_dir=tmp_path / "sft", batch=1, learning_rate=1e-3, seed=0, bf16=False,
                   log=lambda step, loss, learning_rate: losses.append(loss))
    assert len(losses) == 2 and losses[1] < losses[0]                 # the same example again
    after_sft, logged = {n: p for n, p in weights(model).items() if "lora_" in n}, []

    def play(chains, step):
        """Real samples on a toy world; the returns are set, so that there is something to learn."""
        policy = CachedPolicy(model, format.end_ids, tokenizer.pad_token_id, 1.0)
        settings = RolloutSettings(max_turns=2, max_tokens_per_turn=16, max_context=600)
        runs = rollout(chains, 2, policy, FakeWorld({"s_1": ["a"], "s_2": ["b"]}), format, settings, seed=0)
        for run in runs:
            for episode in run.episodes:
                episode.stop, episode.fraction = StopReason.completed, float(run.copy)
        return runs

    trainer = make_trainer(model, tokenizer, [chain("s_1", "s_2")], play, output_dir=tmp_path / "c", copies=2, chains_per_step=1,
                           credit_name="outcome", steps=1, learning_rate=1e-4, bf16=False, train_embeddings=False,
                           agreement_rows=2, log=lambda **row: logged.append(row))
    trainer.train()
    assert 0 < logged[-1]["mismatch_max"] <= AGREE and abs(logged[-1]["mismatch_kl"]) < 1e-6
    assert logged[-1]["grad_norm"] > 0
    now = weights(model)
    assert same(frozen(model), before) and any(not torch.equal(now[n], p) for n, p in after_sft.items())
    again, format_again = policies.load(policies.save(tmp_path / "policy", model.eval(), format))
    ids = torch.tensor([example["input_ids"]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert format_again.prompt_ids(ROW["prompt"]) == format.prompt_ids(ROW["prompt"])


@pytest.mark.notebooks
def test_the_notebooks_run_with_it_from_collection_to_evaluation(smollm, tmp_path, monkeypatch):
    world = PROFILE_WORLD["smollm"]
    if not (datasets.REPOSITORY / "data" / world / "datasets.json").exists():
        unavailable(f"the world {world} is not generated; ./workbench setup --profile smollm makes it")
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path))

    def run(notebook, inputs=(), **parameters):
        record = execute(notebook, {"profile": "smollm", "seed": 0, **parameters}, inputs)
        assert record["status"] == "done", (notebook, record["reason"])
        return tmp_path / "smollm" / f"{notebook}-{record['run_id']}"

    short = {"max_turns": 2, "max_tokens_per_turn": 24}
    collected = run("01_collect", scenarios=2)
    start = run("02_sft_llm", [collected], sft_steps=2, batch_size=1)
    assert json.loads((start / "sft" / "prompt.json").read_text())["base"] == "smollm"
    assert (start / "sft" / "adapter_model.safetensors").exists() and not (start / "base" / "model.safetensors").exists()
    trained = run("03_train", [start], method="sage", steps=1, episodes_per_step=4, group_size=2, **short)
    steps = [row for row in read_metrics(trained) if "loss" in row]
    assert len(steps) == 1 and steps[0]["mismatch_max"] <= AGREE
    chains = [json.loads(line) for line in (trained / "episodes.jsonl").read_text().splitlines()]
    assert len(chains) == 2 and all(len(c["episodes"]) == 2 for c in chains)
    evaluated = run("04_evaluate", [start, trained], method="sage", **short)
    episodes = pd.read_csv(evaluated / "episodes.csv")
    assert len(episodes) == 6 and episodes["scored"].all() and set(episodes["split"]) == {"test_normal", "test_challenge"}
