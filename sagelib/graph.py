"""Tables of notebooks and studies, and the graph of nodes that they expand to; `scheduler` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sagelib.runs import RunError


@dataclass(frozen=True)
class Step:
    """A line of the table of notebooks: one node per seed (unless per_seed is False) and per variant.

    It needs all nodes of the notebooks in `needs` whose seed and parameters agree with its own where both have them.
    """

    notebook: str
    needs: tuple[str, ...] = ()
    per_seed: bool = True
    variants: tuple[dict[str, Any], ...] = ({},)
    minutes: float = 60.0    # time limit; see `time_limit`
    all_seeds: bool = False  # gets the list of all seeds as its parameter `seeds`


@dataclass(frozen=True)
class Cell:
    """A row of a study: a path of (notebook, parameters) that ends in an evaluation; each needs all before it.

    The first is a node of the main table; `smoke`: also in the smoke profile.
    """

    label: str
    path: tuple[tuple[str, dict[str, Any]], ...]
    smoke: bool = False


@dataclass(frozen=True)
class Study:
    """A notebook that compares cells; no part of the main job, and run even if some of its cells failed (`missing`).

    One that needs other studies reads their cells' runs, too.
    """

    notebook: str
    name: str
    cells: tuple[Cell, ...] = ()
    needs: tuple[str, ...] = ()   # other studies
    minutes: float = 20.0

    def of(self, profile: str) -> Study:
        """The study with the cells that the profile has."""
        return self if profile != "smoke" else replace(self, cells=tuple(c for c in self.cells if c.smoke))


@dataclass(frozen=True)
class Node:
    """One notebook with its parameters; `needs` are indices of other nodes. With `gaps` it runs on those that are done."""

    name: str
    notebook: str
    parameters: dict[str, Any]
    seed: int | None
    needs: tuple[int, ...]
    timeout_s: float | None
    main: bool = True
    gaps: bool = False


def expand(steps: Sequence[Step], profile: str, seeds: Sequence[int]) -> list[Node]:
    """All nodes of the table, each after what it needs."""
    nodes: list[Node] = []
    variants: list[dict[str, Any]] = []
    for step in steps:
        known = {n.notebook for n in nodes}
        if not set(step.needs) <= known:
            raise RunError(f"{step.notebook} needs {set(step.needs) - known}, which no earlier line of the table makes")
        first = len(nodes)
        for seed in seeds if step.per_seed else (None,):
            for variant in step.variants:
                needs = tuple(i for i in range(first) if nodes[i].notebook in step.needs
                              and seed_agrees(nodes[i].seed, seed) and agrees(variants[i], variant))
                own = {"profile": profile} | ({} if seed is None else {"seed": seed})
                own |= {"seeds": list(seeds)} if step.all_seeds else {}
                words = [Path(step.notebook).stem, *map(str, variant.values())]
                words += [] if seed is None else [f"seed {seed}"]
                limit = time_limit(step.minutes, profile)
                nodes.append(Node(" ".join(words), step.notebook, own | variant, seed, needs, limit))
                variants.append(variant)
    return nodes


def time_limit(minutes: float, profile: str) -> float | None:
    """Seconds that a notebook may take; None but for the profiles that these minutes were chosen for."""
    return minutes * 60 if profile in ("smoke", "laptop") else None


def node_name(notebook: str, variant: dict[str, Any], seed: int | None) -> str:
    """What a node is called on the terminal and in a study's list of missing runs."""
    words = [notebook, *(str(v) if k == "method" else f"{k}={v}" for k, v in variant.items())]
    return " ".join(words + ([] if seed is None else [f"seed {seed}"]))


def add_studies(nodes: Sequence[Node], studies: Sequence[Study], profile: str, seeds: Sequence[int]) -> list[Node]:
    """The main table's nodes, and behind them the studies with their cells' nodes; equal runs are one node."""
    nodes = list(nodes)
    made: dict[str, int] = {}
    for study in [s.of(profile) for s in studies]:
        needs = {made[name] for name in study.needs}.union(*(nodes[made[name]].needs for name in study.needs))
        for cell in study.cells:
            for seed in seeds:
                needs |= set(_add_path(nodes, cell, profile, seed)[1:])
        limit = time_limit(study.minutes, profile)
        parameters = {"profile": profile, "seeds": list(seeds)}
        made[study.notebook] = len(nodes)
        nodes.append(Node(study.notebook, study.notebook, parameters, None, tuple(sorted(needs)), limit, main=False, gaps=True))
    return nodes


def _add_path(nodes: list[Node], cell: Cell, profile: str, seed: int) -> list[int]:
    """Indices of the cell's nodes for one seed; those that are not there yet are appended."""
    indices: list[int] = []
    for notebook, variant in cell.path:
        parameters = {"profile": profile, "seed": seed} | variant
        same = [i for i, node in enumerate(nodes) if node.notebook == notebook and node.parameters == parameters
                and (not indices or node.needs == tuple(indices))]
        if not same and not indices:
            raise RunError(f"cell {cell.label!r} begins with {notebook} {variant}, which is no node of the main table")
        if not same:
            limit = _limit(nodes, notebook, profile)
            name = node_name(notebook, variant, seed)
            nodes.append(Node(name, notebook, parameters, seed, tuple(indices), limit, main=False))
        indices.append(same[0] if same else len(nodes) - 1)
    return indices


def _limit(nodes: Sequence[Node], notebook: str, profile: str) -> float | None:
    """The time limit of the same notebook in the main table, else that of two hours."""
    known = [node.timeout_s for node in nodes if node.notebook == notebook and node.main]
    return known[0] if known else time_limit(120, profile)


def seed_agrees(a: int | None, b: int | None) -> bool:
    """True when the seeds are the same or one side has none."""
    return a is None or b is None or a == b


def agrees(a: dict, b: dict) -> bool:
    """True when no parameter that both have differs."""
    return all(b[name] == value for name, value in a.items() if name in b)


def only(nodes: Sequence[Node], notebook: str) -> set[int]:
    """Indices of the nodes of one notebook (those of the main table, if it is there) and of everything they need."""
    chosen = {i for i, node in enumerate(nodes) if node.notebook == notebook}
    chosen = {i for i in chosen if nodes[i].main} or chosen
    if not chosen:
        names = sorted({node.notebook for node in nodes})
        raise RunError(f"no notebook {notebook!r} in the table; there are: {', '.join(names)}")
    for i in reversed(range(len(nodes))):
        if i in chosen:
            chosen |= set(nodes[i].needs)
    return chosen
