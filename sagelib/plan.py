"""Before anything is loaded: what a large profile will need per GPU, and where each of its settings comes from.

Arithmetic, not measurement: weights, gradients and Adam's moments are exact, activations an estimate from the layers' shapes.
Gigabytes are 10^9 bytes. Standard library only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from sagelib.profiles import PROFILES

RESERVE = 0.08        # share of a GPU that CUDA, NCCL and fragmentation are given
GB = 1e9
LOSS_TILE = 1024      # tokens whose logits exist at once (TRL's fused head works in tiles)


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-style decoder, as in its config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_dim: int
    tied: bool
    qkv_bias: bool

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        queries, keys = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + keys) + (queries + keys) * self.qkv_bias
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.layers * self.layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on all linear layers but the head."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        ends = 2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * ends

    @property
    def kv_bytes(self) -> int:
        """Of one token in a bfloat16 key/value cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


SHAPES = {
    "smollm": Shape(576, 30, 9, 3, 1536, 49152, 64, True, False),
    "Qwen/Qwen2.5-3B-Instruct": Shape(2048, 36, 16, 2, 11008, 151936, 128, True, True),
    "Qwen/Qwen2.5-32B-Instruct": Shape(5120, 64, 40, 8, 27648, 152064, 128, False, True),
}


@dataclass(frozen=True)
class Hardware:
    """What a profile is meant for. ``trainers``: GPUs that train, each a process that plays and trains whole chains."""

    model: str
    trainers: int
    samplers: int         # GPUs that only sample, as one engine; 0: the trainers do it themselves, all sequences at once
    gb: float             # of each GPU
    sharded: bool         # the trained model is spread over the trainers; else each has all of it
    config: str           # of accelerate, in configs/accelerate

    @property
    def gpus(self) -> int:
        return self.trainers + self.samplers


HARDWARE = {
    "gpu": Hardware("Qwen/Qwen2.5-3B-Instruct", 1, 0, 40.0, False, "one_gpu.yaml"),
    # The paper's 4 machines of 8: its 24 chains of a step go to 24 trainers, one each; the fourth machine samples.
    "paper": Hardware("Qwen/Qwen2.5-32B-Instruct", 24, 8, 80.0, True, "four_machines.yaml"),
}


@dataclass(frozen=True)
class Memory:
    """Gigabytes per GPU, by name. Where the trainers sample too, the two phases of a step follow each other."""

    held: dict[str, float]        # by a trainer, throughout
    training: dict[str, float]    # by a trainer, while it trains
    sampling: dict[str, float]    # by what samples
    together: bool                # the trainers sample themselves
    capacity: float               # what of a GPU may be used

    @property
    def trainer(self) -> float:
        """Peak of a GPU that trains."""
        phases = [sum(self.training.values()), sum(self.sampling.values()) if self.together else 0.0]
        return sum(self.held.values()) + max(phases)

    @property
    def sampler(self) -> float:
        """Of a GPU that only samples, 0 where there is none."""
        return 0.0 if self.together else sum(self.sampling.values())

    @property
    def fits(self) -> bool:
        return max(self.trainer, self.sampler) <= self.capacity + 1e-9


def memory(shape: Shape, hardware: Hardware, train: dict[str, Any]) -> Memory:
    """The plan of a profile: ``train`` are its settings of training (lora_rank 0: all weights).

    All weights: float32 weights, gradients and two moments of Adam, 16 bytes a parameter, over the trainers if sharded. An
    adapter: bfloat16 base model, and those 16 bytes for the adapter alone. Activations: with gradient checkpointing, the
    hidden states between layers, and one layer's own while it is computed again (attention without a T x T matrix).
    """
    parts = hardware.trainers if hardware.sharded else 1
    rank, context = train["lora_rank"], train["max_context"]
    if rank:
        held = {"base weights (bf16)": 2 * shape.parameters / parts, "adapter, gradients, Adam (fp32)": 16 * shape.adapter(rank)}
    else:
        held = {"weights (fp32)": 4 * shape.parameters / parts, "gradients (fp32)": 4 * shape.parameters / parts,
                "Adam's moments (fp32)": 8 * shape.parameters / parts}
    rows = train["episodes_per_step"] // (train["micro_batches"] * hardware.trainers)
    tokens = rows * context
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = tokens * (4 * shape.hidden + 2 * heads + 3 * shape.intermediate) * 2
    training = {f"hidden states between layers ({rows} x {context} tokens)": tokens * shape.hidden * 2 * shape.layers,
                "one layer computed again, and its gradients": 2 * layer,
                "logits of a tile, their softmax and gradient": LOSS_TILE * shape.vocabulary * (2 + 4 + 4)}
    if hardware.sharded:   # the largest part, one being used and one on its way
        training["gathered weights (bf16)"] = 2 * 2 * max(shape.layer, shape.vocabulary * shape.hidden)
    capacity = hardware.gb * (1 - RESERVE)
    if hardware.samplers:
        weights = 2 * shape.parameters / hardware.samplers
        sampling = {"weights (bf16)": weights, "pages of the key/value cache": capacity * GB - weights}
    else:
        copies = train["episodes_per_step"] // train["chain_length"] // hardware.trainers   # one position at a time
        sampling = {f"key/value cache ({copies} x {context} tokens)": copies * context * shape.kv_bytes}
    return Memory(*({name: value / GB for name, value in part.items()} for part in (held, training, sampling)),
                  together=not hardware.samplers, capacity=capacity)


# Where each setting of `config.TrainConfig` comes from: (paper or ours, why). What the paper's sources do not tell is ours.
SOURCES: dict[str, tuple[str, str]] = {
    "method": ("paper", "SAGE; sft_grpo is its baseline SFT+GRPO"),
    "credit": ("paper", "skill-integrated reward, bonus weight 1"),
    "skills": ("paper", "the skill-library agent"),
    "chain_length": ("paper", "2 tasks of one scenario"),
    "group_size": ("paper", "8 rollouts"),
    "episodes_per_step": ("paper", "24 scenarios x 2 tasks x 8 = 384"),
    "max_turns": ("paper", "40 interactions per task"),
    "max_tokens_per_turn": ("paper", "1,500"),
    "max_context": ("paper", "28,048"),
    "learning_rate": ("paper", "1e-6"),
    "schedule": ("paper", "constant"),
    "grad_clip": ("paper", "1.0"),
    "init": ("paper", "the policy after expert SFT"),
    "chains": ("paper", "scenario labels; its ablation without them is chains = 'similar'"),
    "train_embeddings": ("paper", "full-parameter training"),
    "detector": ("ours", "a call in the syntax tree; the paper's name match is detector = 'name_match'"),
    "steps": ("ours", "the paper's best checkpoint is step 75; 100 to see it pass"),
    "clip_eps": ("ours", "not recovered; the default of verl, inert on policy"),
    "temperature": ("ours", "not recovered; 1.0 samples from the policy that is trained"),
    "weight_decay": ("ours", "not recovered; none"),
    "adam_epsilon": ("ours", "not recovered; PyTorch's default"),
    "micro_batches": ("ours", "what fits the memory plan"),
    "save_steps": ("ours", "a lost machine costs at most 10 steps"),
    "lora_rank": ("ours", "0, full-parameter, in paper; an adapter in gpu"),
    "lora_alpha": ("ours", "twice the rank; unused without an adapter"),
    "observation_chars": ("ours", "api documentation must be readable"),
    "agreement_rows": ("ours", "sequences whose log-probabilities sampler and trainer are compared on"),
    "importance_sampling": ("ours", "none, the paper's formula; token_truncate corrects for vLLM's probabilities"),
    "importance_cap": ("ours", "TRL's default; unused without a correction"),
    "bf16": ("ours", "as the accelerate configuration; float32 on a CPU so that sampler and trainer agree"),
    "step_seconds": ("ours", "limit of one block"),
    "parallel": ("ours", "engine steps at once"),
    "profile": ("ours", "name of the profile"),
    "world": ("ours", "a generated world; official AppWorld data where it can be downloaded"),
    "seed": ("ours", "the paper reports one training run"),
}


def describe(profile: str, settings: dict[str, Any]) -> str:
    """The plan of a large profile as text: hardware, settings with their source, memory per GPU. ``settings``: of training."""
    hardware = HARDWARE[profile]
    shape = SHAPES[hardware.model]
    plan = memory(shape, hardware, settings)
    many = f"{hardware.gpus} GPUs" if hardware.gpus > 1 else "1 GPU"
    lines = [f"Profile {profile}: {hardware.model}, {shape.parameters / 1e9:.2f} billion parameters, "
             f"{many} of {hardware.gb:.0f} GB"]
    if hardware.samplers:
        lines.append(f"  {hardware.trainers} train (configs/accelerate/{hardware.config}), {hardware.samplers} sample")
    lines += ["", "Settings of training, and where they come from"]
    for name, value in settings.items():
        whose, why = SOURCES[name]
        if value != PROFILES["paper"]["train"][name]:
            whose, why = "ours", f"for one GPU, in place of {PROFILES['paper']['train'][name]} ({whose}: {why})"
        lines.append(f"  {name:<20} {value!s:<17} {whose:<6} {why}")
    lines += ["", "Memory per GPU in GB: weights, gradients and moments are counted, activations estimated, nothing is measured"]
    where = "a trainer, while it samples" if plan.together else "a sampler"
    parts = {"a trainer, throughout": plan.held, "a trainer, while it trains": plan.training, where: plan.sampling}
    for title, part in parts.items():
        lines += [f"  {title}: {sum(part.values()):.1f}", *(f"    {value:7.1f}  {name}" for name, value in part.items())]
    peaks = f"a trainer's peak is {plan.trainer:.1f}" + ("" if plan.together else f", a sampler's {plan.sampler:.1f}")
    lines.append(f"  {peaks} of {plan.capacity:.1f} that may be used: it {'fits' if plan.fits else 'DOES NOT FIT'}")
    if hardware.samplers:
        tokens = plan.sampling["pages of the key/value cache"] * GB * hardware.samplers / shape.kv_bytes
        full = tokens / settings["max_context"]
        lines.append(f"  the samplers' pages hold {tokens / 1e6:.2f} million tokens, {full:.0f} sequences of full length at once")
    return "\n".join(lines)


def missing(profile: str, gpus: list[Any]) -> list[str]:
    """Why the profile cannot run on these GPUs (`doctor.Gpu`); empty when it can."""
    hardware = HARDWARE[profile]
    found = []
    if len(gpus) < hardware.gpus:
        have = f"{len(gpus) or 'no'} GPU{'' if len(gpus) == 1 else 's'}"
        found.append(f"{have} here; it needs {hardware.gpus} of {hardware.gb:.0f} GB")
    found += [f"{gpu.name} has {gpu.gb:.0f} GB; the plan is for {hardware.gb:.0f} GB" for gpu in gpus[:1] if gpu.gb < hardware.gb]
    if hardware.samplers:
        found.append("sampling on GPUs of its own needs an engine (vLLM), which this repository does not drive yet")
    return found


def gate(profile: str, gpus: list[Any]) -> int:
    """Prints the plan of a large profile. Exit code 1, with the reasons on stderr, when it cannot run on these GPUs."""
    print(describe(profile, PROFILES[profile]["train"]), flush=True)
    reasons = missing(profile, gpus)
    if reasons:
        print(f"\nworkbench: --profile {profile} cannot run here:\n  " + "\n  ".join(reasons) +
              "\n  Fix: run it where these are; --profile smollm runs a real LLM on this machine's CPU.", file=sys.stderr)
    return int(bool(reasons))
