"""Large profiles without a GPU: the plan adds up, every setting has a source, accelerate reads its configurations."""
import subprocess
import sys

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from sagelib import plan
from sagelib.config import TrainConfig
from sagelib.doctor import Gpu
from sagelib.plan import HARDWARE, SHAPES, SOURCES, describe, memory
from sagelib.profiles import PROFILES
from sagelib.runs import ROOT

TRAIN = {name: PROFILES[name]["train"] for name in HARDWARE}


@pytest.mark.parametrize("name, kind, count", [("smollm", LlamaConfig, 134_515_008),
                                               ("Qwen/Qwen2.5-3B-Instruct", Qwen2Config, 3_085_938_688),
                                               ("Qwen/Qwen2.5-32B-Instruct", Qwen2Config, 32_763_876_352)])
def test_parameters_are_those_that_transformers_makes(name, kind, count):
    shape = SHAPES[name]
    config = kind(vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers, head_dim=shape.head_dim,
                  num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, intermediate_size=shape.intermediate,
                  tie_word_embeddings=shape.tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == model.num_parameters() == count


def test_an_adapter_s_parameters_are_those_that_peft_makes():
    from fakes import tiny_model

    from sagelib.lora import attach
    shape = plan.Shape(64, 2, 1, 1, 256, 400, 64, True, True)
    model = attach(tiny_model(), 4, 8, 0)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == shape.adapter(4)


def test_the_paper_s_plan_adds_up_per_gpu():
    shape, hardware = SHAPES["Qwen/Qwen2.5-32B-Instruct"], HARDWARE["paper"]
    found = memory(shape, hardware, TRAIN["paper"])
    assert sum(found.held.values()) == pytest.approx(16 * 32_763_876_352 / 24 / 1e9)     # 21.8 GB
    assert found.held["Adam's moments (fp32)"] == pytest.approx(8 * 32_763_876_352 / 24 / 1e9)
    assert found.training["hidden states between layers (1 x 28048 tokens)"] == pytest.approx(28048 * 5120 * 2 * 64 / 1e9)
    assert shape.kv_bytes == 262_144
    assert found.trainer == pytest.approx(sum(found.held.values()) + sum(found.training.values()))
    assert found.sampler == pytest.approx(found.capacity) == pytest.approx(73.6) and found.fits
    assert found.trainer < found.capacity
    # all 16 bytes a parameter on one GPU cannot fit, and the plan says so
    one = memory(shape, plan.Hardware(hardware.model, 1, 0, 80.0, False, ""), TRAIN["paper"])
    assert sum(one.held.values()) == pytest.approx(524.2, abs=0.1) and not one.fits
    assert "DOES NOT FIT" not in describe("paper", TRAIN["paper"])
    assert "DOES NOT FIT" in describe("paper", TRAIN["paper"] | {"micro_batches": 1})


def test_one_gpu_holds_model_adapter_and_cache():
    shape = SHAPES["Qwen/Qwen2.5-3B-Instruct"]
    found = memory(shape, HARDWARE["gpu"], TRAIN["gpu"])
    assert found.held["base weights (bf16)"] == pytest.approx(2 * 3_085_938_688 / 1e9)
    assert found.held["adapter, gradients, Adam (fp32)"] == pytest.approx(16 * 36 * 32 * (2 * 4096 + 2 * 2304 + 3 * 13056) / 1e9)
    assert found.sampling == pytest.approx({"key/value cache (32 x 8192 tokens)": 32 * 8192 * 2 * 36 * 2 * 128 * 2 / 1e9})
    phases = sum(found.training.values()), sum(found.sampling.values())
    assert found.trainer == pytest.approx(sum(found.held.values()) + max(phases))
    assert found.fits and found.sampler == 0


def test_every_setting_has_a_source_and_the_paper_s_are_the_paper_s():
    assert set(SOURCES) == set(TrainConfig.model_fields)
    own = set(TrainConfig.model_fields) - {"profile", "world", "seed", "method"}
    assert set(TRAIN["paper"]) == own == set(TRAIN["gpu"])
    assert all(whose in ("paper", "ours") and why for whose, why in SOURCES.values())
    config = TrainConfig.from_parameters("paper", method="sage")
    paper = {"credit": "skill_integrated", "skills": True, "chain_length": 2, "group_size": 8, "episodes_per_step": 24 * 2 * 8,
             "max_turns": 40, "max_tokens_per_turn": 1500, "max_context": 28048, "learning_rate": 1e-6, "schedule": "constant",
             "grad_clip": 1.0, "init": "sft", "chains": "scenario", "train_embeddings": True, "method": "sage"}
    assert {name for name, (whose, _) in SOURCES.items() if whose == "paper"} == set(paper)
    assert {name: getattr(config, name) for name in paper} == paper
    assert config.lora_rank == 0 and PROFILES["paper"]["sft_llm"]["lora_rank"] == 0


def test_what_differs_from_the_paper_is_marked():
    text = describe("gpu", TRAIN["gpu"])
    assert "  learning_rate        1e-05             ours   for one GPU, in place of 1e-06 (paper: 1e-6)" in text
    assert "  group_size           8                 paper  8 rollouts" in text


@pytest.mark.parametrize("file, kind, machines, processes", [
    ("one_gpu.yaml", "NO", 1, 1), ("eight_gpus.yaml", "MULTI_GPU", 1, 8), ("four_machines.yaml", "FSDP", 3, 24)])
def test_accelerate_reads_its_configurations(file, kind, machines, processes):
    config = load_config_from_file(str(ROOT / "configs" / "accelerate" / file))
    assert str(config.distributed_type).rsplit(".", 1)[-1] == kind and config.mixed_precision == "bf16"
    assert (config.num_machines, config.num_processes, config.use_cpu) == (machines, processes, False)
    if kind == "FSDP":
        assert config.fsdp_config["fsdp_version"] == 2 and config.fsdp_config["fsdp_reshard_after_forward"] is True


@pytest.mark.parametrize("profile", HARDWARE)
def test_the_configuration_s_processes_are_the_plan_s_and_hold_whole_chains(profile):
    hardware, train = HARDWARE[profile], TRAIN[profile]
    config = load_config_from_file(str(ROOT / "configs" / "accelerate" / hardware.config))
    assert config.num_processes == hardware.trainers
    share = train["episodes_per_step"] / hardware.trainers
    assert share % (train["chain_length"] * train["group_size"]) == 0 and share % train["micro_batches"] == 0


def test_reasons_against_gpus_that_are_there():
    big = Gpu("H100", 85.5)
    assert plan.missing("gpu", [big]) == []
    assert plan.missing("gpu", []) == ["no GPUs here; it needs 1 of 40 GB"]
    assert plan.missing("gpu", [Gpu("L4", 24.2)]) == ["L4 has 24 GB; the plan is for 40 GB"]
    assert plan.missing("paper", [big] * 8)[0] == "8 GPUs here; it needs 32 of 80 GB"
    assert "engine (vLLM)" in plan.missing("paper", [big] * 32)[-1]


@pytest.mark.parametrize("profile", HARDWARE)
def test_the_command_line_prints_the_plan_and_builds_nothing(profile):
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from sagelib import setup, doctor\n"
            "setup.setup = lambda *_, **__: sys.exit('it builds'); doctor.gpus = lambda: []\n"
            "sys.exit(setup.launch(['reproduce', '--profile', sys.argv[2]]))")
    done = subprocess.run([sys.executable, "-IS", "-c", code, ROOT, profile], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Memory per GPU in GB" in done.stdout and HARDWARE[profile].model in done.stdout
    assert done.stderr.startswith(f"\nworkbench: --profile {profile} cannot run here:\n  no GPUs here; it needs")
    assert "--profile smollm runs a real LLM on this machine's CPU" in done.stderr
