"""Recorded episodes of 04_evaluate, played again in the engine, which this time keeps what it writes about them.

An episode is played as it was: the skills that its library held are loaded, then its blocks run, in a process of its own under
the same limits, in the same sandbox, with the same clock; nothing is sampled. Used by leaderboard.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sagelib.appworld import EnginePool, Episode
from sagelib.config import EvalConfig
from sagelib.embedding import Embedder
from sagelib.prompts import observation
from sagelib.retrieval import NEEDS_EMBEDDINGS, Query, Retriever
from sagelib.retrieval import Record as Stored
from sagelib.rollout import load_skills
from sagelib.runs import RunError
from sagelib.skills import SkillLibrary
from sagelib.trajectories import Record

SIDE = Path(__file__).parent / "appworld_side"   # what runs in AppWorld's environment
TOGETHER = 16   # records played side by side
AGAIN = "Fix: run it again while the machine is idle (a block that runs out of time ends otherwise than it did)"


class ReplayPool(EnginePool):
    """An engine whose episodes keep its logs, and whose task folders can be had (appworld_side/replay.py)."""

    SERVER = SIDE / "replay.py"

    def _start(self, python: Path, judge_root: Path, sandbox: bool) -> None:
        self.python = python
        super()._start(python, judge_root, sandbox)

    def fetch(self, episodes: Sequence[Episode]) -> list[dict[str, str]]:
        """What the engine wrote for each, "dbs/venmo.jsonl" -> text; the episodes have ended afterwards."""
        replies = self._control.exchange([dict(op="fetch", episode=e.id, task_id=e.task.task_id) for e in episodes])
        for episode in episodes:
            episode.alive = False
        return [reply["files"] for reply in replies]


def libraries(cfg: EvalConfig, records: Sequence[Record]) -> list[list[dict[str, str]]]:
    """What was loaded before each record's tasks (name -> source): a chain's own library, or what the retriever picked."""
    if cfg.protocol == "scenario":
        return [[{}, *r["libraries"][:-1]] for r in records]
    encode = Embedder().encode if cfg.retrieval in NEEDS_EMBEDDINGS else None
    retriever = Retriever(cfg.retrieval, cfg.top_k, cfg.groups, cfg.ngram, cfg.threshold, cfg.seed, encode)
    store, starts = [], []
    for start in range(0, len(records), cfg.together):
        part = [(r, r["episodes"][0]) for r in records[start : start + cfg.together]]
        asked = [Query(e["task_id"], e["scenario_id"], e["instruction"]) for _, e in part]
        starts += [[retriever.select(store, query) if cfg.with_skills else {}] for query in asked]
        for r, e in part:
            made, called = tuple(e["skills_made"]), tuple(e["skills_called"])
            store.append(Stored(e["task_id"], e["scenario_id"], e["instruction"], r["libraries"][0], made, called))
    return starts


def replay(pool: ReplayPool, episodes: Sequence[Record], held: Sequence[dict[str, str]], chars: int
           ) -> Iterator[tuple[dict[str, str], int]]:
    """Play recorded episodes side by side: each one's task folder, and number of blocks answered otherwise than recorded.

    ``held``: their libraries. ``chars``: of an answer in the record. RunError where the engine fails or a skill's fate differs.
    """
    handles = [handle for group in pool.open([(e["task_id"], 1) for e in episodes]) for handle in group]
    try:
        loaded = load_skills(pool, handles, [SkillLibrary(library) for library in held])
        other = [0] * len(episodes)
        for turn in range(max(len(e["turns"]) for e in episodes)):
            turns = [(i, e["turns"][turn]) for i, e in enumerate(episodes) if turn < len(e["turns"])]
            turns = [(i, t) for i, t in turns if t["code"] is not None]   # None: no block, or cut off and never run
            for (i, t), result in zip(turns, pool.step([(handles[i], t["code"]) for i, t in turns]), strict=True):
                other[i] += observation(result.output, result.error, chars) != t["observation"]
        outcomes = pool.judge(handles)
        folders = pool.fetch(handles)
    finally:
        pool.close(handles)
    for episode, skills, outcome, files, count in zip(episodes, loaded, outcomes, folders, other, strict=True):
        task, why = episode["task_id"], "; ".join(outcome.failures)
        if list(skills) != list(episode["skills_shown"]):
            raise RunError(f"{task}: these skills loaded: {list(skills)}; in the run: {episode['skills_shown']}. {AGAIN}")
        if outcome.status != "judged" or not any(name.startswith("dbs/") for name in files):
            raise RunError(f"{task}: the engine failed ({why}); its log: {pool.log}. {AGAIN}")
        if why.startswith("no usable end state"):
            raise RunError(f"{task}: its code broke the engine's files, so that AppWorld's evaluator has nothing to read "
                           f"({why}). Fix: none here; evaluate a policy that leaves them alone")
        yield files, count


def replay_split(pool: ReplayPool, cfg: EvalConfig, records: Sequence[Record]
                 ) -> Iterator[tuple[Record, str, dict[str, str], int]]:
    """All episodes of a split: each one's record, task, folder, and number of blocks answered otherwise than recorded."""
    starts = libraries(cfg, records)
    for first in range(0, len(records), TOGETHER):
        part = list(zip(records, starts, strict=True))[first : first + TOGETHER]
        for k in range(max(len(r["episodes"]) for r, _ in part)):
            live = [(r, own[k]) for r, own in part if k < len(r["episodes"])]
            episodes, held = [r["episodes"][k] for r, _ in live], [library for _, library in live]
            played = replay(pool, episodes, held, cfg.observation_chars)
            for (record, _), (files, count) in zip(live, played, strict=True):
                yield record, record["episodes"][k]["task_id"], files, count
