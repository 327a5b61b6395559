"""Typed, frozen settings. A notebook's parameters become one of these or a readable error; nothing is coerced.

Class defaults are the vetted laptop setting; profiles.py lists what other profiles change; a parameter that is not
None overrides both.
"""

from __future__ import annotations

import difflib
import html
import json
import typing
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sagelib.profiles import PROFILE_SHOP, PROFILE_WORLD, PROFILES

Seed = typing.Annotated[int, Field(ge=0, lt=2**31)]
Positive = typing.Annotated[int, Field(ge=1)]
Count = typing.Annotated[int, Field(ge=0)]
Rate = typing.Annotated[float, Field(gt=0)]
Share = typing.Annotated[float, Field(ge=0, le=1)]


class ConfigError(ValueError):
    """A setting that cannot be used; the text names the field, the value and the fix, one line per fault."""


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else the list of known names."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(known)}"


class StrictConfig(BaseModel):
    """Base of all settings: unknown names, wrong types, NaN and infinity are errors; instances cannot change."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
    section: ClassVar[str] = ""   # key of this class's settings within a profile

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(self._readable(error)) from None

    @classmethod
    def _readable(cls, error: ValidationError) -> str:
        lines = [f"{cls.__name__}:"]
        for fault in error.errors(include_url=False):
            name, value = ".".join(map(str, fault["loc"])), fault.get("input")
            if fault["type"] == "extra_forbidden":
                lines.append(f"  {name} = {value!r}: there is no such setting{suggest(name, cls.model_fields)}")
            elif not fault["loc"]:
                lines.append("  " + fault["msg"].removeprefix("Value error, "))
            elif fault["type"] == "missing":
                lines.append(f"  {name}: is required")
            else:
                lines.append(f"  {name} = {value!r} ({type(value).__name__}): {fault['msg']}{cls._hint(fault, value)}")
        return "\n".join(lines)

    @staticmethod
    def _hint(fault: dict, value: Any) -> str:
        if fault["type"] == "literal_error" and isinstance(value, str):
            choices = [c.strip(" '") for c in fault["ctx"]["expected"].replace(" or ", ", ").split(",")]
            return suggest(value, choices)
        if isinstance(value, str) and fault["type"] in ("float_type", "int_type", "bool_type"):
            return "; write it without quotes (YAML reads 1e-5 as text: write 1.0e-5)"
        return ""

    @classmethod
    def from_parameters(cls, profile: str, **overrides: Any) -> Self:
        """The profile's settings with every override that is not None put on top; ConfigError when one is unfit."""
        if profile not in PROFILES:
            raise ConfigError(f"profile = {profile!r}: there is no such profile{suggest(profile, PROFILES)}")
        values = dict(PROFILES[profile].get(cls.section, {}))
        for always, value in (("profile", profile), ("world", PROFILE_WORLD[profile])):
            if always in cls.model_fields:
                values[always] = value
        unknown = [name for name in overrides if name not in cls.model_fields]   # even when their value is None
        if unknown:
            raise ConfigError(f"{cls.__name__}: " + "; ".join(
                f"{name} = {overrides[name]!r}: there is no such setting{suggest(name, cls.model_fields)}"
                for name in unknown))
        return cls(**values | {k: v for k, v in overrides.items() if v is not None})

    def rows(self) -> list[tuple[str, str]]:
        """(name, value as JSON) of every setting, in order."""
        return [(name, json.dumps(value)) for name, value in self.model_dump(mode="json").items()]

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.rows()), default=0)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in self.rows())])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><td>{html.escape(n)}</td><td><code>{html.escape(v)}</code></td></tr>"
                        for n, v in self.rows())
        return f"<table><tr><th colspan=2>{type(self).__name__}</th></tr>{cells}</table>"


class RunConfig(StrictConfig):
    """What every notebook has."""

    profile: Literal["smoke", "laptop", "smollm", "gpu", "paper"] = "laptop"
    world: str = "mini"
    seed: Seed = 0

    @model_validator(mode="after")
    def _profile_exists(self) -> Self:
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is missing from profiles.py")
        return self


class CollectConfig(RunConfig):
    """01_collect: demonstrations of the expert, kept when the judge passes them."""

    section: ClassVar[str] = "collect"
    scenarios: Positive | None = None   # so many scenario draws of the data set "demos", spread over it; None: all
    reuse: Share = 0.3                  # share of later tasks that use what the library holds (else: written anew)
    update: Share = 0.35                # share of tasks whose first block fails and is mended
    hasty: Share = 0.7                  # share of tasks whose function reads ten rows of a list; kept where that was enough
    parallel: Positive = 2              # engine steps at once


class SFTConfig(RunConfig):
    """02_sft: pairs, then whole plain episodes (Base), then episodes with a skill library (SFT)."""

    section: ClassVar[str] = "sft"
    vocabulary: typing.Annotated[int, Field(ge=300)] = 2048
    width: Positive = 192
    layers: Positive = 4
    heads: Positive = 6
    pair_steps: Count = 300
    base_steps: Positive = 350
    sft_steps: Positive = 700
    pair_share: Share = 0.4             # packed pairs among the examples of later batches
    pairs_per_example: Positive = 6
    other_values: Count = 4             # times that each demonstration is shown with other values
    batch_size: Positive = 8
    learning_rate: Rate = 3e-3
    sft_learning_rate: Rate = 2.5e-3


class AdapterConfig(RunConfig):
    """02_sft_llm: a pre-trained LLM, its prompt with a worked demonstration (Base), and an adapter on top of it (SFT)."""

    section: ClassVar[str] = "sft_llm"
    model: str = "smollm"               # smollm, a directory, or OWNER/MODEL of the hub
    keep_history: bool = False          # keep replies as sampled where the chat template would rewrite them
    demo_chars: Positive = 1500         # of one observation in the worked demonstration
    lora_rank: Count = 16               # 0: all weights are trained
    lora_alpha: Positive = 32
    sft_steps: Positive = 200
    batch_size: Positive = 8
    learning_rate: Rate = 2e-4
    max_length: Positive = 4096         # longer demonstrations are left out, never cut
    bf16: bool = True                   # False: float32, as the sampler on a CPU


class AgentConfig(RunConfig):
    """Limits of an episode, shared by training and evaluation."""

    max_turns: Positive = 5
    max_tokens_per_turn: Positive = 200
    max_context: Positive = 1000
    observation_chars: Positive = 160   # of one observation, what is beyond is cut
    temperature: typing.Annotated[float, Field(ge=0)] = 1.0
    step_seconds: Rate = 5.0            # limit of one block of agent code
    parallel: Positive = 2              # engine steps at once
    detector: Literal["strict", "name_match"] = "strict"   # what counts as using a skill: a call, or a mention (the paper's)


class GradientConfig(StrictConfig):
    """How TRL's trainer makes its steps, for SAGE and for SkillRise."""

    schedule: Literal["constant", "linear"] = "linear"   # linear: down to 0 at the last step
    adam_epsilon: Rate = 1e-6
    train_embeddings: bool = False      # Adam gives the rows of tokens that never occur steps of full size, all in one direction
    clip_eps: typing.Annotated[float, Field(gt=0, lt=1)] = 0.2
    grad_clip: Rate = 1.0
    weight_decay: typing.Annotated[float, Field(ge=0)] = 0.0
    save_steps: Positive = 10           # a checkpoint every so many steps


class TrainConfig(AgentConfig, GradientConfig):
    """03_train: GRPO on chains (sage), or on single tasks without skills (sft_grpo)."""

    section: ClassVar[str] = "train"
    method: Literal["sage", "sft_grpo"]
    credit: Literal["skill_integrated", "outcome", "chain"] = "skill_integrated"
    skills: bool = True
    chain_length: typing.Annotated[int, Field(ge=1, le=3)] = 2
    chains: Literal["scenario", "similar"] = "scenario"   # similar: no labels, by the instructions' embeddings
    init: Literal["sft", "base", "self_distilled", "rl_warm_up"] = "sft"   # see policies.start
    group_size: typing.Annotated[int, Field(ge=2)] = 8
    episodes_per_step: Positive = 64    # = chains * chain_length * group_size; equal for all methods
    steps: Positive = 30
    learning_rate: Rate = 1e-4
    micro_batches: Positive = 2
    lora_rank: Count = 0                # of a new adapter, for an LLM that has none; 0: what the start policy has is trained
    lora_alpha: Positive = 32
    bf16: bool | None = None            # None: where this machine is fast at it
    agreement_rows: Count = 0           # sequences per step on which sampler's and trainer's log-probabilities are compared
    importance_sampling: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    importance_cap: typing.Annotated[float, Field(ge=1)] = 3.0   # of the weights that make up for the difference (importance.py)

    @property
    def chains_per_step(self) -> int:
        return self.episodes_per_step // (self.chain_length * self.group_size)

    @classmethod
    def from_parameters(cls, profile: str, **overrides: Any) -> Self:
        """As StrictConfig's; sft_grpo then means single tasks, no skills, outcome reward unless told otherwise."""
        if overrides.get("method") == "sft_grpo":
            plain = {"skills": False, "chain_length": 1, "credit": "outcome"}
            overrides = plain | {k: v for k, v in overrides.items() if v is not None}
        return super().from_parameters(profile, **overrides)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.credit == "skill_integrated" and not self.skills:
            raise ValueError("credit 'skill_integrated' rewards skills, but skills = False; use credit = 'outcome'")
        if self.temperature == 0:
            raise ValueError("temperature 0 samples the same rollout every time; training needs > 0")
        if self.chains == "similar" and self.chain_length == 1:
            raise ValueError("chains = 'similar' joins tasks of like instructions, but chain_length = 1; use chain_length = 2")
        per_chain = self.chain_length * self.group_size
        if self.episodes_per_step % per_chain:
            raise ValueError(f"episodes_per_step = {self.episodes_per_step} is not a multiple of "
                             f"chain_length * group_size = {per_chain}")
        if self.episodes_per_step % self.micro_batches:
            raise ValueError(f"micro_batches = {self.micro_batches} does not divide "
                             f"episodes_per_step = {self.episodes_per_step}")
        return self


class EvalConfig(AgentConfig):
    """04_evaluate: one method on the held-out panels."""

    section: ClassVar[str] = "evaluate"
    method: Literal["base", "sft", "sft_grpo", "sage"]
    splits: list[Literal["dev", "test_normal", "test_challenge"]] = ["test_normal", "test_challenge"]
    skills: bool | None = None          # None: as the method was trained (base and sft_grpo without, sft and sage with)
    scenarios: Positive | None = None   # so many of each split, spread over it; None: all
    plays: dict[Literal["dev", "test_normal", "test_challenge"], Positive] = {}   # of each scenario, apart from each other; else 1
    protocol: Literal["scenario", "stream"] = "scenario"   # a library per scenario, or one over a shuffled stream of tasks
    retrieval: Literal["same_scenario", "query_ngram", "query_embedding", "skill_embedding", "bm25", "random", "all",
                       "none"] = "same_scenario"           # see retrieval.py; of protocol "stream"
    top_k: Positive = 6                 # most skills shown, with those that they call; of protocol "stream"
    groups: Positive = 2                # earlier tasks whose skills query_* may show
    ngram: Positive = 2                 # words
    threshold: Share | None = None      # least similarity of an earlier task; None: the method's own
    together: Positive = 1              # tasks of the stream played at once, before their skills are stored

    @property
    def with_skills(self) -> bool:
        return self.skills if self.skills is not None else self.method in ("sft", "sage")

    @classmethod
    def from_parameters(cls, profile: str, **overrides: Any) -> Self:
        """As StrictConfig's; a stream is played once, whatever the profile's ``plays``."""
        if overrides.get("protocol") == "stream" and overrides.get("plays") is None:
            overrides["plays"] = {}
        return super().from_parameters(profile, **overrides)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.protocol == "scenario" and self.retrieval != "same_scenario":
            raise ValueError(f"retrieval = {self.retrieval!r} chooses from a library of many scenarios; use protocol = 'stream'")
        if self.protocol == "stream" and max(self.plays.values(), default=1) > 1:
            raise ValueError(f"plays = {self.plays!r}: a stream is played once; use protocol = 'scenario', or plays = {{}}")
        return self


class FiguresConfig(RunConfig):
    """90_figures and the ablations: which seeds the tables and figures hold."""

    section: ClassVar[str] = "figures"
    seeds: typing.Annotated[list[Seed], Field(min_length=1)] = [0]
    publish: bool = True                # write to figures/; else to the run's own results
    missing: dict[str, str] = {}        # runs that an ablation should have had, and why they are not there


class TourConfig(RunConfig):
    """00_tour: one scenario by hand."""

    section: ClassVar[str] = "tour"
    scenario: Count = 0
    dataset: Literal["train", "demos", "dev", "test_normal", "test_challenge"] = "dev"


class ShopConfig(RunConfig):
    """What the notebooks of SkillRise share: they play in the generated shop."""

    world: Literal["shop-mini", "shop-smoke"] = "shop-mini"

    @classmethod
    def from_parameters(cls, profile: str, **overrides: Any) -> Self:
        """As StrictConfig's; without a world the profile's shop."""
        shop = {"world": PROFILE_SHOP.get(profile)}
        return super().from_parameters(profile, **shop | {k: v for k, v in overrides.items() if v is not None or k != "world"})


class RiseLoopConfig(ShopConfig):
    """Limits of a trial, shared by demonstrations, training and evaluation. Sizes are tokens of the policy's tokenizer."""

    K: typing.Annotated[int, Field(ge=1, le=12)] = 3   # tasks of a sequence
    max_turns: Positive = 11            # the second product can be bought at the tenth or eleventh turn, the third cannot
    max_context: Positive = 800
    reply_tokens: Positive = 32
    writer_tokens: Positive = 120       # the curator's reply
    document_tokens: Positive = 90
    trajectory_tokens: Positive = 500   # what the curator sees of the attempt
    temperature: typing.Annotated[float, Field(ge=0)] = 1.0


class RiseSFTConfig(RiseLoopConfig):
    """19_skillrise_sft: rule players in the shop, and a policy that imitates them in both roles."""

    section: ClassVar[str] = "rise_sft"
    per_family: Positive = 9            # tasks of each family that are played: a multiple of K
    hasty: Share = 0.4                  # share of attempts that buy the first product listed, without reading its features
    unread: Share = 0.3                 # share of attempts that do not use the document
    general: Share = 0.5                # share of documents that hold general advice instead of what was found out
    vocabulary: typing.Annotated[int, Field(ge=300)] = 1000
    width: Positive = 128
    layers: Positive = 3
    heads: Positive = 4
    pairs: Positive = 12000             # short exercises in copying (see rise_demos.copying_pairs)
    pairs_per_example: Positive = 6
    pair_steps: Count = 300             # batches of them alone, before the first row of a trial
    pair_share: Share = 0.25            # of later batches
    steps: Positive = 2000              # batches with rows of trials: two passes in the shop
    batch_size: Positive = 8
    learning_rate: Rate = 3e-3
    sequences: Positive = 16            # of dev, played afterwards

    @model_validator(mode="after")
    def _whole_sequences(self) -> Self:
        if self.per_family % self.K:
            raise ValueError(f"per_family = {self.per_family} is not a multiple of K = {self.K}: tasks would be left out")
        return self


class CarryConfig(StrictConfig):
    """What a method carries from task to task (`rise_document.Carry`): the one switch between the two papers."""

    carries: ClassVar[dict[str, str]] = {"sft": "document", "skillrise": "document", "reflection": "reflection",
                                         "skills": "skills", "both": "both", "no_carry": "none", "grpo": "none"}


class RiseTrainConfig(RiseLoopConfig, GradientConfig, CarryConfig):
    """20_skillrise_train: SkillRise; the same with something else carried, or nothing (no_carry); single tasks (grpo)."""

    section: ClassVar[str] = "rise_train"
    method: Literal["skillrise", "reflection", "skills", "both", "no_carry", "grpo"]   # what each carries: `carries`
    gamma: Share = 0.6
    curate_weight: typing.Annotated[float, Field(ge=0)] = 1.0
    scale: Literal["mean", "mean_std"] = "mean"
    members: Literal["trials", "rows"] = "trials"   # with mean_std and rows: the baseline as it was released
    copies: typing.Annotated[int, Field(ge=2)] = 8
    episodes_per_step: Positive = 96    # = sequences * K * copies; equal for all methods
    steps: Positive = 40
    learning_rate: Rate = 2e-4

    @property
    def carry(self) -> str:
        return self.carries[self.method]

    @property
    def sequences_per_step(self) -> int:
        return self.episodes_per_step // (self.K * self.copies)

    @classmethod
    def from_parameters(cls, profile: str, **overrides: Any) -> Self:
        """As ShopConfig's; grpo plays single tasks unless told otherwise."""
        if overrides.get("method") == "grpo":
            overrides = {"K": 1} | {k: v for k, v in overrides.items() if v is not None}
        return super().from_parameters(profile, **overrides)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.temperature == 0:
            raise ValueError("temperature 0 samples the same trial every time; training needs > 0")
        if self.carry != "none" and self.K == 1:
            raise ValueError(f"method {self.method!r} carries something from task to task, but K = 1; use K >= 2, or 'grpo'")
        if self.episodes_per_step % (self.K * self.copies):
            raise ValueError(f"episodes_per_step = {self.episodes_per_step} is not a multiple of "
                             f"K * copies = {self.K * self.copies}")
        return self


class RiseEvalConfig(RiseLoopConfig, CarryConfig):
    """21_skillrise_evaluate and 22_skillrise_scaling: a frozen policy on held-out stores."""

    section: ClassVar[str] = "rise_evaluate"
    method: Literal["sft", "skillrise", "reflection", "skills", "both", "no_carry", "grpo"]
    carry: Literal["document", "reflection", "none", "skills", "both"]   # without it: as the method was trained; sft: a document
    split: Literal["dev", "test"] = "test"
    per_family: Positive = 3            # tasks of each family: a multiple of K
    attempts: Positive = 3              # at one task, for Pass@k
    lengths: list[Positive] = [1, 2, 4, 6]   # of sequences, in 22_skillrise_scaling
    per_length: Positive = 12           # tasks of each family there: a multiple of all lengths
    length_families: Positive = 16      # so many families there, spread over the stores
    families: Positive | None = None    # so many families elsewhere; None: all

    @model_validator(mode="before")
    @classmethod
    def _as_trained(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("carry") is None and values.get("method") in cls.carries:
            return values | {"carry": cls.carries[values["method"]]}
        return values

    @model_validator(mode="after")
    def _whole_sequences(self) -> Self:
        odd = [K for K in self.lengths if self.per_length % K]
        if self.per_family % self.K or odd:
            raise ValueError(f"per_family = {self.per_family} must be a multiple of K = {self.K}, and per_length = "
                             f"{self.per_length} of each of {self.lengths}: the panel plays every task once")
        return self


class SelfDistillConfig(AgentConfig):
    """05_self_distill: Base plays the training scenarios with a library, and is fine-tuned on what it solved."""

    section: ClassVar[str] = "self_distill"
    scenarios: Positive | None = None   # so many of the data set "train", spread over it; None: all
    plays: Positive = 8                 # of each scenario, each from an empty library
    fewest: Positive = 50               # own traces; below it the notebook warns. With none it fails
    epochs: Positive = 4                # times that each trace is shown
    pair_share: Share = 0.4             # packed pairs among the examples, as in 02_sft
    pairs_per_example: Positive = 6
    batch_size: Positive = 8
    learning_rate: Rate = 1e-3

    @model_validator(mode="after")
    def _room_for_traces(self) -> Self:
        if round(self.batch_size * self.pair_share) >= self.batch_size:
            raise ValueError(f"pair_share = {self.pair_share} leaves no place for traces in a batch of {self.batch_size}; "
                             f"use a smaller share")
        return self
