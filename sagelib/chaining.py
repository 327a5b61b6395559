"""The chains that a training run consumes: tasks of one scenario, or tasks of like instructions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from sagelib import datasets
from sagelib.config import TrainConfig
from sagelib.types import Chain


def training_chains(scenarios: list[Chain], length: int, count: int, seed: int) -> list[Chain]:
    """``count`` chains of ``length`` tasks: scenarios in shuffled epochs, the tasks of each an ordered random draw."""
    if length > min(len(c.task_ids) for c in scenarios):
        raise ValueError(
            f"chain length {length} exceeds the {min(len(c.task_ids) for c in scenarios)} tasks of a scenario"
        )
    rng, chains = random.Random(seed), []
    while len(chains) < count:
        for scenario in rng.sample(scenarios, len(scenarios)):
            chains.append(Chain(scenario.scenario_id, tuple(rng.sample(scenario.task_ids, length))))
    return chains[:count]


def chains_of(cfg: TrainConfig, scenarios: list[Chain]) -> list[Chain]:
    """The chains that a training run consumes, in order: by scenario, or unlabelled by like instructions."""
    count = cfg.steps * cfg.chains_per_step
    if cfg.chains == "scenario":
        return training_chains(scenarios, cfg.chain_length, count, cfg.seed)
    from sagelib.embedding import Embedder  # an extra that the default installation lacks

    instructions = datasets.load_instructions(cfg.world, [task_id for scenario in scenarios for task_id in scenario.task_ids])
    return similar_chains(instructions, Embedder().encode, cfg.chain_length, count, cfg.seed)


def alike(chains: Sequence[Chain], families: dict[str, str]) -> dict[str, float]:
    """Percent of chains whose tasks are of one scenario, and of one family."""
    scenarios = [{task_id.rsplit("_", 1)[0] for task_id in chain.task_ids} for chain in chains]
    return {
        "chains_of_one_scenario": 100 * sum(len(s) == 1 for s in scenarios) / len(chains),
        "chains_of_one_family": 100 * sum(len({families[x] for x in s}) == 1 for s in scenarios) / len(chains),
    }


def similar_chains(
    instructions: dict[str, str],
    encode: Callable[[Sequence[str]], np.ndarray],
    length: int,
    count: int,
    seed: int,
    neighbours: int = 2,
) -> list[Chain]:
    """``count`` chains of tasks with like instructions, whatever their scenarios: what `training_chains` does, unlabelled.

    Each task in shuffled epochs, with ``length`` - 1 of its nearest ``neighbours`` (at least so many) by the product of
    ``encode``'s rows, in random order. The default leaves a choice of two, as the other two tasks of a scenario do.
    SAGE's chains without labels pair neighbours by all-MiniLM-L6-v2 embeddings of the instructions.
    """
    task_ids = sorted(instructions)
    if length < 2 or length > len(task_ids):
        raise ValueError(f"chain length {length}: similar tasks are joined from 2 up to the {len(task_ids)} tasks there are")
    vectors_ND = encode([instructions[task_id] for task_id in task_ids])
    likeness_NN = vectors_ND @ vectors_ND.T
    np.fill_diagonal(likeness_NN, -np.inf)  # no task is its own neighbour
    nearest_NK = np.argsort(-likeness_NN, axis=1, kind="stable")[:, : max(neighbours, length - 1)]
    rng, chains = random.Random(seed), []
    while len(chains) < count:
        for i in rng.sample(range(len(task_ids)), len(task_ids)):
            members = [i, *rng.sample(nearest_NK[i].tolist(), length - 1)]
            picked = [task_ids[j] for j in rng.sample(members, length)]
            chains.append(Chain(picked[0].rsplit("_", 1)[0], tuple(picked)))
    return chains[:count]
