"""Which stored skills a new task gets to see: the retrieval methods of SAGE (section 5.3, table 4), BM25, and controls.

A store is a list of `Record`s, one per task played, oldest first. A method ranks candidates; `Retriever.select` then
takes them in order, each together with the functions that it calls, while no more than ``top_k`` are shown.

    same_scenario    all skills that the scenario's earlier tasks left behind (the paper's default; uses the label)
    query_ngram      skills of the ``groups`` earlier tasks whose instructions share most word n-grams (Jaccard)
    query_embedding  the same with the cosine of sentence embeddings
    skill_embedding  functions whose text is nearest to the instruction
    bm25             functions whose words fit the instruction (bm25s)
    random           any stored functions; seeded by task
    all              the newest functions
    none             nothing
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sagelib.embedding import Encode

THRESHOLD = {"query_ngram": 0.4, "query_embedding": 0.6}  # from dev and train: above nearly all pairs of other scenarios
Candidate = tuple[int, str]  # (index of a record, name of a function in its library)


@dataclass(frozen=True)
class Query:
    """The task for which skills are looked up."""

    task_id: str
    scenario_id: str
    instruction: str


@dataclass(frozen=True)
class Record:
    """What one played task left. ``library``: all that was callable at its end, name -> source, callees before callers."""

    task_id: str
    scenario_id: str
    instruction: str
    library: dict[str, str]
    made: tuple[str, ...] = ()
    called: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[str, ...]:
        """The skills that belong to this task: those that it made and those that it called, in library order."""
        return tuple(name for name in self.library if name in self.made or name in self.called)


def words(text: str) -> list[str]:
    """Lower-case words; names such as ``like_song`` are cut at the underscores."""
    return re.findall(r"[^\W_]+", text.lower())


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """Distinct runs of n words; a shorter text is one run."""
    found = words(text)
    return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))} if found else set()


def overlap(a: str, b: str, n: int) -> float:
    """Jaccard index of the word n-grams, 0 to 1; 0 when there is no word."""
    x, y = ngrams(a, n), ngrams(b, n)
    return len(x & y) / len(x | y) if x | y else 0.0


def callees(name: str, library: dict[str, str]) -> list[str]:
    """Stored functions that a function needs, however deep: each once, before those that need it; recursion is fine."""
    order: list[str] = []
    seen = {name}

    def visit(current: str) -> None:
        named = {node.id for node in ast.walk(ast.parse(library[current])) if isinstance(node, ast.Name)}
        for other in library:
            if other in named and other not in seen:
                seen.add(other)
                visit(other)
                order.append(other)

    visit(name)
    return order


def newest(store: Sequence[Record]) -> list[Candidate]:
    """Every function once, in its latest version (by name, as the paper's library overwrites), newest first."""
    latest: dict[str, int] = {}
    for i, record in enumerate(store):
        for name in record.made:
            latest.pop(name, None)
            latest[name] = i
    return [(i, name) for name, i in reversed(latest.items())]


@dataclass(frozen=True)
class Retriever:
    """``top_k``: most functions shown, callees included (None: no limit). ``encode`` is needed by the embedding methods."""

    method: str
    top_k: int | None = 6
    groups: int = 2
    ngram: int = 2
    threshold: float | None = None
    seed: int = 0
    encode: Encode | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"retrieval method {self.method!r} is not one of {', '.join(METHODS)}")
        if self.encode is None and self.method.endswith("_embedding"):
            raise ValueError(f"{self.method} compares embeddings: give encode = Embedder().encode")

    def select(self, store: Sequence[Record], query: Query) -> dict[str, str]:
        """name -> source of what the task is shown, in order of definition, callees first. A caller that finds no room
        with all its callees is left out; of two functions of one name the better-ranked stays, whoever calls it."""
        chosen: dict[str, Candidate] = {}
        for i, name in METHODS[self.method](self, store, query):
            library = store[i].library
            new = [n for n in (*callees(name, library), name) if n not in chosen]
            if self.top_k is None or len(chosen) + len(new) <= self.top_k:
                chosen |= {n: (i, n) for n in new}
        in_order = sorted(chosen.values(), key=lambda c: (c[0], list(store[c[0]].library).index(c[1])))
        sources = {name: store[i].library[name] for i, name in in_order}
        return {n: sources[n] for name in sources for n in (*callees(name, sources), name)}

    def _limit(self) -> float:
        return THRESHOLD[self.method] if self.threshold is None else self.threshold

    def _best_groups(self, store: Sequence[Record], scores: Sequence[float]) -> list[Candidate]:
        """Skills of the best-scored tasks that have any, newest task first among equals."""
        able = [i for i in range(len(store)) if store[i].group and scores[i] >= self._limit()]
        best = sorted(able, key=lambda i: (-scores[i], -i))[: self.groups]
        return [(i, name) for i in best for name in reversed(store[i].group)]


def _same_scenario(_: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    """The library after the scenario's latest task, newest function first (it holds what the earlier tasks left, too)."""
    of_scenario = [i for i, record in enumerate(store) if record.scenario_id == query.scenario_id]
    names: dict[Candidate, None] = {}
    shown: set[str] = set()
    for i in reversed(of_scenario):
        for name in reversed(store[i].library):
            if name not in shown:
                shown.add(name)
                names[i, name] = None
    return list(names)


def _query_ngram(r: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    return r._best_groups(store, [overlap(record.instruction, query.instruction, r.ngram) for record in store])


def _query_embedding(r: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    if not store:
        return []
    vectors_ND = r.encode([record.instruction for record in store] + [query.instruction])
    return r._best_groups(store, (vectors_ND[:-1] @ vectors_ND[-1]).tolist())


def _ranked(candidates: list[Candidate], scores: Sequence[float]) -> list[Candidate]:
    return [candidates[i] for i in sorted(range(len(candidates)), key=lambda i: -scores[i])]  # stable: newest among equals


def _skill_embedding(r: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    candidates = newest(store)
    if not candidates:
        return []
    vectors_ND = r.encode([store[i].library[name] for i, name in candidates] + [query.instruction])
    return _ranked(candidates, (vectors_ND[:-1] @ vectors_ND[-1]).tolist())


def _bm25(_: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    """Functions that share a word with the instruction, by BM25 (Lucene's variant, k1 = 1.5, b = 0.75)."""
    from bm25s import BM25

    candidates, asked = newest(store), words(query.instruction)
    if not candidates or not asked:
        return []
    index = BM25()
    index.index([words(store[i].library[name]) for i, name in candidates], show_progress=False)
    scores = index.get_scores(asked).tolist()
    return [c for c, score in zip(_ranked(candidates, scores), sorted(scores, reverse=True), strict=True) if score > 0]


def _random(r: Retriever, store: Sequence[Record], query: Query) -> list[Candidate]:
    candidates = sorted(newest(store))
    return random.Random(f"{r.seed} {query.task_id}").sample(candidates, len(candidates))


METHODS: dict[str, Callable[[Retriever, Sequence[Record], Query], list[Candidate]]] = {
    "same_scenario": _same_scenario,
    "query_ngram": _query_ngram,
    "query_embedding": _query_embedding,
    "skill_embedding": _skill_embedding,
    "bm25": _bm25,
    "random": _random,
    "all": lambda _, store, query: newest(store),
    "none": lambda _, store, query: [],
}
NEEDS_EMBEDDINGS = ("query_embedding", "skill_embedding")
