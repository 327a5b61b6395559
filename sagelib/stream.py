"""The deployed agent: a long stream of tasks, one library that grows over all of them, a retriever that picks from it.

Beside the paper's protocol (`evaluate.evaluate`: three tasks of a scenario in order, a library of their own) this asks
what the skills are worth when nobody says which tasks belong together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pandas as pd

from sagelib import datasets
from sagelib.config import EvalConfig
from sagelib.embedding import Embedder
from sagelib.evaluate import COLUMNS, episode_row, evaluate
from sagelib.play import settings as limits_of
from sagelib.policy import Policy
from sagelib.prompts import ChatFormat
from sagelib.retrieval import NEEDS_EMBEDDINGS, Query, Record, Retriever
from sagelib.rollout import RolloutSettings, World, rollout
from sagelib.skills import SkillLibrary
from sagelib.types import Chain, ChainRun

STREAM_COLUMNS = [*COLUMNS, "stream_index", "stored", "shown_of_scenario"]


def stream_order(chains: Sequence[Chain], seed: int) -> list[Chain]:
    """All tasks as chains of one, shuffled; tasks of one scenario keep their order, so that ``position`` means the same."""
    places = [chain.scenario_id for chain in chains for _ in chain.task_ids]
    random.Random(seed).shuffle(places)
    left = {chain.scenario_id: iter(chain.task_ids) for chain in chains}
    return [Chain(scenario, (next(left[scenario]),)) for scenario in places]


def play_stream(
    policy: Policy,
    world: World,
    format: ChatFormat,
    stream: Sequence[Chain],
    instructions: dict[str, str],
    families: dict[str, str],
    settings: RolloutSettings,
    retriever: Retriever,
    *,
    seed: int,
    together: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, list[ChainRun]]:
    """Play single-task chains one after the other. Returns a row per task (`STREAM_COLUMNS`) and the runs, in that order.

    ``position`` counts the scenario's tasks so far, ``stored`` the functions in the store, ``shown_of_scenario`` the shown
    skills that an earlier task of the same scenario made or called. ``together``: so many tasks are played at once, and
    their skills are stored after all of them (1: each task sees everything before it). An environment failure stores nothing.
    """
    store: list[Record] = []
    runs: list[ChainRun] = []
    rows: list[dict] = []
    for start in range(0, len(stream), together):
        part = stream[start : start + together]
        queries = [Query(chain.task_ids[0], chain.scenario_id, instructions[chain.task_ids[0]]) for chain in part]
        shown = [retriever.select(store, query) if settings.skills else {} for query in queries]
        libraries = [SkillLibrary(skills) for skills in shown]
        played = rollout(part, 1, policy, world, format, settings, seed=seed * 1_000_003 + start * 101, libraries=libraries)
        stored = len({name for record in store for name in record.made})
        for i, (run, query) in enumerate(zip(played, queries, strict=True), start):
            own = {name for record in store if record.scenario_id == query.scenario_id for name in record.group}
            episode = run.episodes[0]
            episode.position = episode.segment.position = sum(row["scenario_id"] == query.scenario_id for row in rows)
            rows.append(
                episode_row(episode, families[query.scenario_id])
                | {"stream_index": i, "stored": stored, "shown_of_scenario": len(own & set(episode.skills_shown))}
            )
        store += [record for run, query in zip(played, queries, strict=True) if (record := as_record(run, query)) is not None]
        runs += played
        progress(len(runs), len(stream))
    return pd.DataFrame(rows, columns=STREAM_COLUMNS), runs


def as_record(run: ChainRun, query: Query) -> Record | None:
    """What the task leaves in the store; None after an environment failure."""
    episode = run.episodes[0]
    if not episode.scored:
        return None
    made, called = episode.skills_made, episode.skills_called
    return Record(query.task_id, query.scenario_id, query.instruction, run.libraries[0], made, called)


def play_split(
    cfg: EvalConfig,
    split: str,
    policy: Policy,
    world: World,
    format: ChatFormat,
    progress: Callable[[int, int], None],
) -> tuple[pd.DataFrame, list[ChainRun]]:
    """A split by ``cfg.protocol``: `evaluate.evaluate` (a library per scenario), or `play_stream` over all its tasks."""
    chains, families = datasets.load_dataset(cfg.world, split, cfg.scenarios)
    limits, options = limits_of(cfg, cfg.with_skills), {"seed": cfg.seed, "progress": progress}
    if cfg.protocol == "scenario":
        return evaluate(policy, world, format, chains, families, limits, plays=cfg.plays.get(split, 1), **options)
    texts = datasets.load_instructions(cfg.world, [task for chain in chains for task in chain.task_ids])
    stream, encode = stream_order(chains, cfg.seed), Embedder().encode if cfg.retrieval in NEEDS_EMBEDDINGS else None
    retriever = Retriever(cfg.retrieval, cfg.top_k, cfg.groups, cfg.ngram, cfg.threshold, cfg.seed, encode)
    return play_stream(
        policy, world, format, stream, texts, families, limits, retriever, together=cfg.together, **options
    )
