"""Which tasks are played: the world's data sets, and the chains that a training run consumes."""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sagelib.config import TrainConfig
from sagelib.runs import ROOT
from sagelib.types import Chain

REPOSITORY = ROOT


def world_dir(world: str) -> Path:
    """Directory of a generated world; FileNotFoundError with the command that makes it."""
    path = REPOSITORY / "data" / world
    if not (path / "datasets.json").is_file():
        raise FileNotFoundError(
            f"world {world!r} is not there (no {path / 'datasets.json'}); make it with ./workbench setup"
        )
    return path


def load_dataset(world: str, name: str, scenarios: int | None = None) -> tuple[list[Chain], dict[str, str]]:
    """All scenarios of a data set as chains of their tasks in order, and scenario id -> family.

    ``scenarios``: only that many, spread evenly over the data set (families are adjacent in it).
    """
    datasets = json.loads((world_dir(world) / "datasets.json").read_text())
    if name not in datasets:
        near = difflib.get_close_matches(name, datasets, 1)
        raise KeyError(
            f"world {world!r} has no data set {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else f": {sorted(datasets)}")
        )
    tasks: dict[str, list[str]] = {}
    for task_id in datasets[name]["tasks"]:
        tasks.setdefault(task_id.rsplit("_", 1)[0], []).append(task_id)
    chains = [Chain(scenario, tuple(ids)) for scenario, ids in tasks.items()]
    if scenarios is not None and scenarios < len(chains):
        chains = [chains[i * len(chains) // scenarios] for i in range(scenarios)]
    return chains, {c.scenario_id: load_expert(world_dir(world), c.task_ids[0])["family"] for c in chains}


def load_expert(world_dir: Path, task_id: str) -> dict[str, Any]:
    """The expert's material of one task (main process only: agents cannot read the judge's root)."""
    path = Path(world_dir) / "judge" / "data" / "tasks" / task_id / "ground_truth" / "expert.json"
    return json.loads(path.read_text())


def load_instructions(world: str, task_ids: Sequence[str]) -> dict[str, str]:
    """task id -> the instruction that the agent reads."""
    tasks = world_dir(world) / "agent" / "data" / "tasks"
    return {task_id: json.loads((tasks / task_id / "specs.json").read_text())["instruction"] for task_id in task_ids}


def load_pairs(world: str) -> list[dict[str, Any]]:
    """Short instruction -> code pairs, {"app", "kind", "text", "code"}."""
    return [json.loads(line) for line in (world_dir(world) / "pairs.jsonl").read_text().splitlines()]


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

    instructions = load_instructions(cfg.world, [task_id for scenario in scenarios for task_id in scenario.task_ids])
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
