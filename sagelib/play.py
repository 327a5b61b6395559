"""Rollouts of a training run: play a step's chains with the current weights, and put on record what was seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from sagelib import chat, credit
from sagelib.config import AgentConfig, RiseLoopConfig, TrainConfig
from sagelib.policy import CachedPolicy
from sagelib.prompts import ChatFormat
from sagelib.rollout import RolloutSettings, World, rollout
from sagelib.types import Chain, ChainRun, StopReason


def settings(cfg: AgentConfig, skills: bool) -> RolloutSettings:
    """The limits of an episode, from a notebook's configuration."""
    return RolloutSettings(
        skills=skills,
        max_turns=cfg.max_turns,
        max_tokens_per_turn=cfg.max_tokens_per_turn,
        max_context=cfg.max_context,
        observation_chars=cfg.observation_chars,
        detector=cfg.detector,
    )


def sampler(cfg: AgentConfig | RiseLoopConfig, model: PreTrainedModel, format: ChatFormat) -> CachedPolicy:
    return CachedPolicy(model, format.end_ids, format.tokenizer.pad_token_id, cfg.temperature)


def player(
    cfg: TrainConfig,
    model: PreTrainedModel,
    format: ChatFormat,
    world: World,
    episodes_path: Path,
    log: Callable[..., None],
    progress: Callable[[int, int, str], None],
) -> Callable[[list[Chain], int], list[ChainRun]]:
    """The function that the trainer calls at each step: samples C*G chain runs and appends them to ``episodes_path``.

    Sampling is seeded by (seed, step) alone, so a resumed run continues as the uninterrupted one would have.
    """
    policy = sampler(cfg, model, format)

    def play(chains: list[Chain], step: int) -> list[ChainRun]:
        runs = rollout(
            chains,
            cfg.group_size,
            policy,
            world,
            format,
            settings(cfg, cfg.skills),
            seed=cfg.seed * 1_000_003 + step * 1009,
        )
        returns = [credit.chain_returns(run, credit.CREDIT[cfg.credit]) for run in runs]
        summary = step_metrics(runs, returns, cfg.group_size)
        log(kind="rollout", step=step + 1, **summary)
        progress(step + 1, cfg.steps, f"solved {summary['solved']:.0f}%")
        with open(episodes_path, "a") as file:
            for run, returns_K in zip(runs, returns, strict=True):
                file.write(json.dumps(chain_record(run, returns_K, step + 1)) + "\n")
        return runs

    return play


def step_metrics(
    runs: Sequence[ChainRun], returns: Sequence[Sequence[float | None]], copies: int
) -> dict[str, float | None]:
    """What a step looked like: percentages over scored episodes, and groups that teach nothing (all returns equal)."""
    episodes = [e for run in runs for e in run.episodes]
    scored = [e for e in episodes if e.scored]
    if not scored:
        raise RuntimeError(f"all {len(episodes)} episodes of this step were environment failures; see the engine's log")
    later = [e for e in scored if e.position > 0]
    values = [r for rs in returns for r in rs if r is not None]
    groups = [
        [returns[i][k] for i in range(start, start + copies)]
        for start in range(0, len(runs), copies)
        for k in range(len(runs[0].episodes))
    ]

    def share(items: Sequence[Any]) -> float | None:
        return 100 * fmean(map(float, items)) if items else None

    return {
        "solved": share([e.success for e in scored]),
        "r_mean": fmean(e.fraction for e in scored),
        "return_mean": fmean(values),
        "skill_use": share([bool(e.skills_called) for e in later])
        if later and any(e.skills_shown for e in later)
        else None,
        "tokens": fmean(e.segment.generated for e in scored),
        "steps_per_task": fmean(e.steps for e in scored),
        "zero_variance": share([len({r for r in g if r is not None}) < 2 for g in groups]),
        "env_failures": len(episodes) - len(scored),
        "splits": sum(len(chat.sequences(e.segment)) - 1 for e in episodes),
        **{f"stop_{reason}": share([e.stop is reason for e in episodes]) for reason in StopReason},
    }


def chain_record(run: ChainRun, returns_K: Sequence[float | None], step: int | None = None) -> dict[str, Any]:
    """One JSON-ready row per chain copy: everything a viewer needs, token ids included."""
    row = asdict(run)
    row["returns"], row["step"] = list(returns_K), step
    return row
