"""Stand-ins for tests: a world that runs agent code in-process, a policy that replays replies, a 0.1M-parameter model.

`FakeWorld` follows `rollout.World` and answers with the real `sagelib.appworld` results, so that the loop cannot tell.
"""
from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from sagelib.appworld import Outcome, StepResult
from sagelib.policy import Sample, WholeSequences
from sagelib.prompts import ChatFormat
from sagelib.tiny import make_model, train_tokenizer
from sagelib.types import Chain

TEXTS = [
    "Task: Write a note that says \"Maria Lopez\".\nSkills:\nnone",
    "I write the note.\n```python\ndef add(text):\n    apis.notes.add(text=text)\nadd(\"Maria Lopez\")\n```",
    "I am done.\n```python\napis.supervisor.complete_task(answer=12)\n```",
    "<|im_start|>user\nOK<|im_end|>\n<|im_start|>assistant\nNameError: name 'add' is not defined",
] * 3


@functools.cache
def tiny_tokenizer():
    return train_tokenizer(TEXTS, vocab_size=400)


@functools.cache
def tiny_format() -> ChatFormat:
    return ChatFormat(tiny_tokenizer())


def tiny_model(seed: int = 0, gain: float = 6.0) -> torch.nn.Module:
    """About 0.1M parameters in float32; ``gain`` sharpens the random weights, so that logits differ clearly."""
    model = make_model(tiny_tokenizer(), width=64, layers=2, heads=1, context=512, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model.eval()


@dataclass(eq=False)
class FakeEpisode:
    """A handle: its own namespace and its own end state."""

    task: Any
    copy: int
    notes: list[str] = field(default_factory=list)
    done: bool = False
    alive: bool = True
    failure: str = ""
    steps: int = 0
    namespace: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def complete_task(answer: Any = None) -> None:
            self.done = True

        supervisor = SimpleNamespace(complete_task=complete_task)
        notes = SimpleNamespace(add=lambda text: self.notes.append(text), all=lambda: list(self.notes))
        self.namespace["apis"] = SimpleNamespace(supervisor=supervisor, notes=notes)


class FakeWorld:
    """Each task wants some notes; its unit tests are "note x is there" for each of them, and "nothing else is there".

    ``faults[(task_id, copy, n)]`` is the status that step n (from 0, skill loading included) of that copy ends with;
    ``judge_faults`` holds the (task_id, copy) that the judge fails on. ``log`` keeps every executed block.
    """

    def __init__(self, wanted: dict[str, list[str]], faults: dict[tuple[str, int, int], str] | None = None,
                 judge_faults: set[tuple[str, int]] = frozenset()) -> None:
        self.wanted, self.faults, self.judge_faults = wanted, faults or {}, judge_faults
        self.log: list[tuple[str, int, str]] = []
        self.open_handles: list[FakeEpisode] = []
        self.judged: list[tuple[str, int]] = []

    def open(self, requests: list[tuple[str, int]]) -> list[list[FakeEpisode]]:
        groups = [[FakeEpisode(SimpleNamespace(task_id=task_id, instruction=f"Write notes for {task_id}."), copy)
                   for copy in range(copies)] for task_id, copies in requests]
        self.open_handles += [handle for group in groups for handle in group]
        return groups

    def step(self, requests: list[tuple[FakeEpisode, str]]) -> list[StepResult]:
        return [self._step(handle, code) for handle, code in requests]

    def _step(self, handle: FakeEpisode, code: str) -> StepResult:
        number, handle.steps = handle.steps, handle.steps + 1
        self.log.append((handle.task.task_id, handle.copy, code))
        status = self.faults.get((handle.task.task_id, handle.copy, number))
        if not handle.alive:
            status = "env_failure" if handle.failure else "died"
        if status is not None:
            handle.alive, handle.failure = False, "scripted" if status == "env_failure" else ""
            return StepResult("", f"scripted {status}", handle.done, status, False, 0.0)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, handle.namespace)
        except Exception as error:
            return StepResult(printed.getvalue(), f"{type(error).__name__}: {error}", handle.done, "error", False, 0.0)
        return StepResult(printed.getvalue(), None, handle.done, "ok", False, 0.0)

    def judge(self, episodes: list[FakeEpisode]) -> list[Outcome]:
        outcomes = []
        for handle in episodes:
            key = (handle.task.task_id, handle.copy)
            self.judged.append(key)
            wanted = self.wanted[handle.task.task_id]
            tests = [note in handle.notes for note in wanted] + [set(handle.notes) <= set(wanted)]
            failures = tuple(f"test {i}" for i, passed in enumerate(tests) if not passed)
            status = "env_failure" if key in self.judge_faults or handle.failure else "judged"
            outcomes.append(Outcome(sum(tests), len(tests), all(tests), failures, status))
        return outcomes

    def close(self, episodes: list[FakeEpisode]) -> None:
        for handle in episodes:
            self.open_handles.remove(handle)


class ReplayPolicy:
    """Replies given as text: ``script(position, row, turn) -> text``. Log-probabilities are -0.01, -0.02, ...

    Text is cut into ids byte by byte, not as the tokenizer would merge it: a loop that re-tokenises is found out.
    A reply that is longer than the limit comes back with ``finish="length"``. ``sessions`` keeps what was sampled.
    """

    def __init__(self, format: ChatFormat, script: Callable[[int, int, int], str]) -> None:
        self.format, self.script = format, script
        self.sessions: list[ReplaySession] = []
        self.seeds: list[int] = []

    def start(self, prompts: Sequence[list[int]], seed: int) -> ReplaySession:
        self.seeds.append(seed)
        self.sessions.append(ReplaySession(self, len(self.sessions), [list(p) for p in prompts]))
        return self.sessions[-1]


class ReplaySession(WholeSequences):
    def __init__(self, policy: ReplayPolicy, position: int, sequences: list[list[int]]) -> None:
        super().__init__(sequences)
        self.policy, self.position = policy, position
        self.turns = [0] * len(sequences)
        self.sampled: list[list[list[int]]] = [[] for _ in sequences]
        self.prompts = [list(s) for s in sequences]

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        samples = []
        for row in rows:
            text = self.policy.script(self.position, row, self.turns[row])
            ids = [i for char in text for i in self.policy.format.encode(char)] + [self.policy.format.end_id]
            finish = "stop" if len(ids) <= max_new_tokens else "length"
            ids = ids[:max_new_tokens]
            self.turns[row] += 1
            self.sequences[row] += ids
            self.sampled[row].append(list(ids))
            samples.append(Sample(list(ids), [-0.01 * (i + 1) for i in range(len(ids))], finish))
        return samples


def chain(*task_ids: str) -> Chain:
    return Chain(task_ids[0].split("_")[0], task_ids)
