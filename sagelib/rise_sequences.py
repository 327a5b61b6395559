"""Sequences of SkillRise: K related tasks, easy to hard, written down once and checked whenever they are played.

A manifest names tasks by content. Each task has a *fingerprint*, a hash of what makes it that task and no other (the goal
and the start state; not an index, not a price ceiling drawn anew): the released WebShop split named goals by their index
in a shuffle that every worker seeded differently, so that 93 % of the validation goals were training goals. Here

* a manifest's hash covers its plan, its tasks with their fingerprints and its sequences; `read` refuses an edited one,
* `check_disjoint` compares training and test by fingerprint, whatever the tasks are called,
* `build` never repeats a task, neither by name nor by fingerprint, and pads nothing: what fills no sequence is listed,
* `CheckedWorld` compares every task that a world opens with the manifest, so that a worker with another catalogue,
  seed or order cannot serve another task under the same name,
* `check_played` insists that an evaluation played its panel: every task once for each copy, and no other.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sagelib.config import Seed, StrictConfig, suggest
from sagelib.types import Chain


class ManifestError(ValueError):
    """Sequences that must not be played; the text says which task and why."""


@dataclass(frozen=True)
class TaskCard:
    """What is known of a task before it is played. ``attributes`` are what difficulty and distinctness refer to."""

    task_id: str
    family: str
    fingerprint: str
    attributes: dict[str, Any] = field(default_factory=dict)


def fingerprint(*parts: Any) -> str:
    """16 hex digits of the JSON of what makes a task this task."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


DIFFICULTY: dict[str, Callable[[TaskCard], float]] = {
    "none": lambda card: 0.0,
    "plan_length": lambda card: float(card.attributes["plan_length"]),       # ALFWorld, ScienceWorld: expert's actions
    "search_depth": lambda card: float(card.attributes["search_depth"]),     # receptacles nearer than the object, say
    "attributes_and_options": lambda card: float(card.attributes["attributes"] + card.attributes["options"]),  # WebShop
}


class SequencePlan(StrictConfig):
    """How sequences are made. Equal plans and equal tasks give equal sequences."""

    world: str
    split: str
    K: Annotated[int, Field(ge=1, le=12)] = 3
    seed: Seed = 0
    difficulty: str = "plan_length"
    order: Literal["strata", "sorted", "random"] = "strata"
    """strata: one task of each K-th of the family, easiest first; sorted: random draws, sorted (as released); random: control"""
    distinct: str | None = None                        # attribute that differs within a sequence as far as possible
    per_family: Annotated[int, Field(ge=1)] | None = None   # so many tasks of each family; None: all
    whole: bool = False                                # refuse to leave a task out (panels)

    @model_validator(mode="after")
    def _difficulty_exists(self) -> Self:
        if self.difficulty not in DIFFICULTY:
            raise ValueError(f"difficulty = {self.difficulty!r}: there is no such function{suggest(self.difficulty, DIFFICULTY)}")
        return self


@dataclass(frozen=True)
class TaskSequence:
    """K tasks of one family in playing order."""

    sequence_id: str
    family: str
    task_ids: tuple[str, ...]
    difficulty: tuple[float, ...]

    @property
    def chain(self) -> Chain:
        """As the rollout takes it."""
        return Chain(self.sequence_id, self.task_ids)


@dataclass(frozen=True)
class Manifest:
    """Sequences with everything that decided them. ``left_out``: tasks that filled no sequence."""

    plan: dict[str, Any]
    tasks: tuple[TaskCard, ...]
    sequences: tuple[TaskSequence, ...]
    left_out: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """sha256 of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """task id -> fingerprint."""
        return {card.task_id: card.fingerprint for card in self.tasks}

    @property
    def rise(self) -> float:
        """Mean difference in difficulty between a sequence's last and first task: 0 says that nothing rises."""
        steps = [s.difficulty[-1] - s.difficulty[0] for s in self.sequences]
        return sum(steps) / len(steps) if steps else 0.0


def build(cards: Iterable[TaskCard], plan: SequencePlan) -> Manifest:
    """Sequences of the tasks, family by family. ManifestError for repeated tasks, or with ``whole`` for leftovers."""
    cards = sorted(cards, key=lambda card: card.task_id)
    _refuse_repeats(cards)
    families: dict[str, list[TaskCard]] = defaultdict(list)
    for card in cards:
        families[card.family].append(card)
    sequences, used = [], []
    for family, members in families.items():
        rng = random.Random(f"{plan.seed} {family}")   # a family's sequences do not depend on the other families
        chosen = rng.sample(members, min(plan.per_family or len(members), len(members)))
        for i, row in enumerate(_draw(chosen, plan, rng)):
            values = tuple(DIFFICULTY[plan.difficulty](card) for card in row)
            sequences.append(TaskSequence(f"{family}/K{plan.K}/{i}", family, tuple(c.task_id for c in row), values))
            used += row
    left = sorted({card.task_id for card in cards} - {card.task_id for card in used})
    if plan.whole and (left or not used):
        raise ManifestError(f"{len(left)} of {len(cards)} tasks fill no sequence of K = {plan.K}: {', '.join(left[:5])}; "
                            f"a panel takes a multiple of K from each family")
    return Manifest(plan.model_dump(), tuple(sorted(used, key=lambda c: c.task_id)), tuple(sequences), tuple(left))


def _draw(cards: list[TaskCard], plan: SequencePlan, rng: random.Random) -> list[list[TaskCard]]:
    """len(cards) // K rows of K tasks, each task at most once."""
    count = len(cards) // plan.K

    def level(card: TaskCard) -> float:
        # Ties stay in random order (sorting is stable): by name, a task's position could tell where its product is listed.
        return DIFFICULTY[plan.difficulty](card)

    if plan.order == "strata":
        # Leftovers go before the strata are cut, so that a stratum holds exactly one task for each sequence.
        ordered = sorted(cards[: count * plan.K], key=level)
        pools = [ordered[k * count:(k + 1) * count] for k in range(plan.K)]
        for pool in pools:
            rng.shuffle(pool)
    else:
        pools = [list(cards)] * plan.K   # one pool, already in random order
    rows = [_pick(pools, plan.distinct) for _ in range(count)]
    return rows if plan.order == "random" else [sorted(row, key=level) for row in rows]


def _pick(pools: list[list[TaskCard]], distinct: str | None) -> list[TaskCard]:
    """One task of each pool, taken out of it; a new value of the attribute ``distinct`` where the pool still has one."""
    row: list[TaskCard] = []
    for pool in pools:
        seen = [card.attributes[distinct] for card in row] if distinct else []
        fresh = next((i for i, card in enumerate(pool) if not distinct or card.attributes[distinct] not in seen), 0)
        row.append(pool.pop(fresh))
    return row


def _refuse_repeats(cards: Sequence[TaskCard]) -> None:
    for what in ("task_id", "fingerprint"):
        value, times = max(Counter(getattr(c, what) for c in cards).items(), key=lambda x: x[1], default=("", 1))
        if times > 1:
            names = [c.task_id for c in cards if getattr(c, what) == value]
            raise ManifestError(f"{what} {value} occurs {times} times ({', '.join(names[:4])}): a task is played once")


def repeated(card: TaskCard, k: int) -> Chain:
    """The same task k times (Pass@k by repeated attempts): the only way to play a task again."""
    return Chain(f"{card.task_id}/again{k}", (card.task_id,) * k)


# ---- files

def write(manifest: Manifest, path: Path) -> str:
    """The manifest as JSON with its hash, which is returned."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(asdict(manifest) | {"hash": manifest.hash}, indent=1, sort_keys=True) + "\n")
    return manifest.hash


def read(path: Path) -> Manifest:
    """What `write` wrote. ManifestError when the file was edited, repeats a task or holds an undeclared one."""
    data = json.loads(Path(path).read_text())
    said = data.pop("hash", None)
    tasks = tuple(TaskCard(**card) for card in data["tasks"])
    sequences = tuple(TaskSequence(s["sequence_id"], s["family"], tuple(s["task_ids"]), tuple(s["difficulty"]))
                      for s in data["sequences"])
    manifest = Manifest(data["plan"], tasks, sequences, tuple(data["left_out"]))
    if manifest.hash != said:
        raise ManifestError(f"{path}: its content has hash {manifest.hash[:12]}, it says {str(said)[:12]}; build it anew")
    _refuse_repeats(tasks)
    listed = [task for s in sequences for task in s.task_ids]
    if sorted(listed) != sorted(manifest.fingerprints):
        raise ManifestError(f"{path}: its sequences and its tasks do not agree")
    return manifest


# ---- what must hold between manifests, worlds and what was played

def check_disjoint(*manifests: Manifest) -> None:
    """ManifestError when two of them share a task, by name or by fingerprint."""
    for i, a in enumerate(manifests):
        for b in manifests[:i]:
            names = set(a.fingerprints) & set(b.fingerprints)
            same = set(a.fingerprints.values()) & set(b.fingerprints.values())
            if names or same:
                twins = names or {t for m in (a, b) for t, f in m.fingerprints.items() if f in same}
                raise ManifestError(f"{b.plan['split']} and {a.plan['split']} share {len(names | same)} tasks, "
                                    f"such as {', '.join(sorted(twins)[:4])}")


def check_played(manifest: Manifest, played: Iterable[str], copies: int = 1) -> None:
    """ManifestError unless every task of the panel was played ``copies`` times, and nothing else."""
    counts = Counter(played)
    wrong = {t: counts[t] for t in manifest.fingerprints if counts[t] != copies}
    foreign = sorted(set(counts) - set(manifest.fingerprints))
    if wrong or foreign:
        raise ManifestError(f"the panel asks for each of {len(manifest.tasks)} tasks {copies} times; played otherwise: "
                            f"{dict(list(wrong.items())[:4])}; not in the panel: {foreign[:4]}")


class CheckedWorld:
    """A world that opens only the tasks of its manifests, and only if they are the tasks that were declared.

    Handles must show ``task.fingerprint``. Everything else is the world's own.
    """

    def __init__(self, world: Any, *manifests: Manifest) -> None:
        self.world, self.known = world, {}
        for manifest in manifests:
            self.known |= manifest.fingerprints

    def open(self, requests: list[tuple[str, int]]) -> list[list[Any]]:
        """As the world's; ManifestError (and nothing stays open) for a task that is not in the manifests or differs."""
        unknown = [task_id for task_id, _ in requests if task_id not in self.known]
        if unknown:
            raise ManifestError(f"task {unknown[0]!r} is in none of the manifests of this run")
        groups = self.world.open(requests)
        for (task_id, _), group in zip(requests, groups, strict=True):
            for handle in group:
                if handle.task.fingerprint != self.known[task_id]:
                    self.world.close([h for g in groups for h in g])
                    raise ManifestError(f"the world opened another task as {task_id!r}: fingerprint {handle.task.fingerprint}, "
                                        f"declared {self.known[task_id]}; it was built from other data or another seed")
        return groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)
