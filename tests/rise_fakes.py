"""Stand-ins for SkillRise: a text world in which a family keeps its things in one place, and a policy that reads its prompt."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from fakes import tiny_format

from sagelib.appworld import Outcome, StepResult
from sagelib.policy import Sample
from sagelib.prompts import ChatFormat
from sagelib.rise_sequences import TaskCard, fingerprint
from sagelib.types import Chain

PLACES = {"red": "box", "blue": "drawer"}           # family -> where its things are


def card(task_id: str) -> TaskCard:
    family, number = task_id.split("-")
    return TaskCard(task_id, family, fingerprint("find", family, number), {"plan_length": int(number)})


def sequence(family: str, *numbers: int) -> Chain:
    return Chain(family, tuple(f"{family}-{n}" for n in numbers))


@dataclass(eq=False)
class FakeRoom:
    task: SimpleNamespace
    copy: int
    found: bool = False
    steps: int = 0


class FakeTextWorld:
    """``open box`` or ``open drawer``: the thing lies where its family keeps things. It is found, and the task is over.

    ``faults[(task_id, copy, n)]`` is the status of step n of that copy; ``judge_faults`` are (task_id, copy).
    """

    def __init__(self, faults=None, judge_faults=frozenset(), noise: str = "") -> None:
        self.faults, self.judge_faults, self.noise = faults or {}, judge_faults, noise
        self.log: list[tuple[str, int, str]] = []
        self.open_handles: list[FakeRoom] = []

    def open(self, requests: list[tuple[str, int]]) -> list[list[FakeRoom]]:
        groups = []
        for task_id, copies in requests:
            start = f"You see a box and a drawer. {self.noise}"
            task = SimpleNamespace(task_id=task_id, instruction=f"find thing {task_id}", start=start,
                                   fingerprint=card(task_id).fingerprint)
            groups.append([FakeRoom(task, copy) for copy in range(copies)])
        self.open_handles += [handle for group in groups for handle in group]
        return groups

    def step(self, requests: list[tuple[FakeRoom, str]]) -> list[StepResult]:
        return [self._step(handle, action) for handle, action in requests]

    def _step(self, handle: FakeRoom, action: str) -> StepResult:
        key = (handle.task.task_id, handle.copy, handle.steps)
        handle.steps += 1
        self.log.append((handle.task.task_id, handle.copy, action))
        status = self.faults.get(key, "ok")
        if status != "ok":
            return StepResult("", f"scripted {status}", False, status, False, 0.0)
        handle.found = handle.found or action == f"open {PLACES[handle.task.task_id.split('-')[0]]}"
        seen = "You find it." if handle.found else "It is empty."
        return StepResult(f"{seen} {self.noise}", None, handle.found, "ok", False, 0.0)

    def judge(self, handles: list[FakeRoom]) -> list[Outcome]:
        return [Outcome(int(h.found), 1, h.found, () if h.found else ("not found",),
                        "env_failure" if (h.task.task_id, h.copy) in self.judge_faults else "judged") for h in handles]

    def close(self, handles: list[FakeRoom]) -> None:
        for handle in handles:
            self.open_handles.remove(handle)


class ReadingPolicy:
    """``script(text) -> reply`` from all that was read and said so far. Ids are cut byte by byte, as in `fakes.ReplayPolicy`."""

    def __init__(self, script: Callable[[str], str], format: ChatFormat | None = None) -> None:
        self.script, self.format = script, format or tiny_format()
        self.prompts: list[str] = []
        self.sampled: list[list[int]] = []
        self.seeds: list[int] = []

    def start(self, prompts: Sequence[list[int]], seed: int) -> ReadingSession:
        self.seeds.append(seed)
        self.prompts += [self.format.decode(p) for p in prompts]
        return ReadingSession(self, [list(p) for p in prompts])


class ReadingSession:
    def __init__(self, policy: ReadingPolicy, sequences: list[list[int]]) -> None:
        self.policy, self.sequences = policy, sequences
        self.live = list(range(len(sequences)))

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self.sequences[row] += chunk

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        assert set(rows) <= set(self.live), "a row that left its session came back"
        self.live = list(rows)
        samples = []
        for row in rows:
            text = self.policy.script(self.policy.format.tokenizer.decode(self.sequences[row]))
            whole = [i for char in text for i in self.policy.format.encode(char)] + [self.policy.format.end_id]
            ids = whole[:max_new_tokens]
            self.sequences[row] += ids
            self.policy.sampled.append(list(ids))
            finish = "stop" if len(ids) == len(whole) else "length"
            samples.append(Sample(ids, [-0.01 * (i + 1) for i in range(len(ids))], finish))
        return samples


def finder(text: str) -> str:
    """Looks where the document says, else into the box, then the drawer; as the curator it writes where the thing was."""
    if "Write the" in text:
        tag = "remark" if "Write the remark" in text else "skill"
        place = "drawer" if "open drawer" in text else "box"
        return f"I write. <{tag}>Things are in the {place}.</{tag}>"
    if "in the drawer" in text or "open box" in text:
        return "<action>open drawer</action>"
    return "<action>open box</action>"
