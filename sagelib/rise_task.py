"""The solver's half of the loop: one task of every trial, turn by turn, until each has a stop reason.

A task's conversation is appended turn by turn, as in SAGE, so that every sampled id is computed once; where the next reply
would not fit (or after ``turns_per_prompt`` turns) a new prompt is written from the document, the task and the newest
turns, and a new training row begins. ``turns_per_prompt = 1`` is the released code: each turn is a row of its own.

Limits, in this order: the prompt must fit (else ``context_full``); a reply without an action costs the turn and marks its
row; the world may break (``timeout``, ``died``, ``env_failure``) or say that the task is over (``completed``);
``max_turns``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sagelib import prompts, skills
from sagelib import rise_prompts as texts
from sagelib.policy import Policy, Sample, Session
from sagelib.rise_document import parse_action
from sagelib.rise_prompts import Draft
from sagelib.rise_types import Attempt, LoopSettings, Trial
from sagelib.rollout import World, load_skills
from sagelib.skills import SkillLibrary
from sagelib.types import Segment, StopReason, Turn

_BROKEN = {"timeout": StopReason.timeout, "died": StopReason.died, "env_failure": StopReason.env_failure}


class Conversations:
    """Rows that may move from one policy session to the next; a row that moves leaves its old session for good."""

    def __init__(self, policy: Policy, seed: str) -> None:
        self.policy, self.seed, self.sessions = policy, seed, 0
        self.where: dict[int, tuple[Session, int]] = {}

    def begin(self, rows: Sequence[int], prompt_ids: Sequence[list[int]]) -> None:
        """Afterwards these rows are fresh sequences that start with these ids."""
        if rows:
            seed = random.Random(f"{self.seed}/{self.sessions}").randrange(2**31)   # sessions never share random numbers
            session = self.policy.start(prompt_ids, seed)
            self.sessions += 1
            self.where |= {row: (session, i) for i, row in enumerate(rows)}

    def _by_session(self, rows: Sequence[int]) -> list[tuple[Session, list[int]]]:
        groups: dict[int, tuple[Session, list[int]]] = {}
        for row in rows:
            session = self.where[row][0]
            groups.setdefault(id(session), (session, []))[1].append(row)
        return list(groups.values())

    def extend(self, rows: Sequence[int], chunks: Sequence[list[int]]) -> None:
        chunk = dict(zip(rows, chunks, strict=True))
        for session, members in self._by_session(rows):
            session.extend([self.where[row][1] for row in members], [chunk[row] for row in members])

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        """One reply for each of the rows, in their order."""
        samples: dict[int, Sample] = {}
        for session, members in self._by_session(rows):
            replies = session.generate([self.where[row][1] for row in members], max_new_tokens)
            samples |= dict(zip(members, replies, strict=True))
        return [samples[row] for row in rows]


class Task:
    """One task of every trial, turn by turn, until each has a stop reason."""

    def __init__(
        self,
        trials: Sequence[Trial],
        handles: Sequence[Any],
        documents: Sequence[str],
        libraries: Sequence[SkillLibrary],
        position: int,
        policy: Policy,
        world: World,
        format: prompts.ChatFormat,
        settings: LoopSettings,
        seed: str,
    ) -> None:
        self.handles, self.documents, self.libraries = handles, documents, libraries
        self.world, self.format, self.settings, self.budgets = world, format, settings, settings.budgets
        self.talk = Conversations(policy, seed)
        self.shown = load_skills(world, handles, libraries) if settings.carry.library else [None] * len(trials)
        self.starts = [getattr(handle.task, "start", "") for handle in handles]
        self.attempts = [
            Attempt(trial.chain.task_ids[position], trial.chain.scenario_id, position, handle.task.instruction,
                    Segment([], position=position), skills_shown=tuple(shown or ()))
            for trial, handle, shown in zip(trials, handles, self.shown, strict=True)
        ]

    def play(self) -> list[Attempt]:
        for turn in range(self.settings.max_turns):
            self._offer_prompts(self._live(), turn)
            live = self._live()
            if not live:
                break
            samples = self.talk.generate(live, self.budgets.reply_tokens)
            for row, sample in zip(live, samples, strict=True):
                self._record_reply(row, sample)
            acting = [row for row in live if self.attempts[row].turns[-1].code is not None]
            results = self.world.step([(self.handles[row], self.attempts[row].turns[-1].code) for row in acting])
            for row, result in zip(acting, results, strict=True):
                self._record_result(row, result)
        return self.attempts

    def _live(self) -> list[int]:
        return [row for row, attempt in enumerate(self.attempts) if attempt.stop is StopReason.max_turns]

    def _offer_prompts(self, live: list[int], turn: int) -> None:
        """Each live row can be sampled afterwards: its conversation was extended, or begun anew; else it is full."""
        extended, chunks, begun, fresh = [], [], [], []
        for row in live:
            attempt = self.attempts[row]
            chunk = self._next_chunk(attempt, turn)
            if chunk is not None:
                attempt.segment.append(chunk, own=False)
                extended.append(row)
                chunks.append(chunk)
                continue
            fitted = texts.fit(self._draft(row), self.format, self.budgets.max_context - self.budgets.reply_tokens,
                               self.budgets.trajectory_tokens, self.budgets.window)
            if fitted is None:
                attempt.stop = StopReason.context_full
                continue
            self._new_segment(attempt, fitted, first=turn == 0)
            begun.append(row)
            fresh.append(fitted.ids)
        self.talk.extend(extended, chunks)
        self.talk.begin(begun, fresh)

    def _next_chunk(self, attempt: Attempt, turn: int) -> list[int] | None:
        """The observation's ids, if the row goes on in its conversation; None when it needs a prompt of its own."""
        limit = self.budgets.turns_per_prompt
        if turn == 0 or (limit and turn % limit == 0):
            return None
        last = attempt.turns[-1]
        chunk = self.format.observation_ids(last.observation, closed=last.token_ids[-1] in self.format.end_ids)
        room = self.budgets.max_context - self.budgets.reply_tokens
        return chunk if len(attempt.segment.ids) + len(chunk) <= room else None

    def _draft(self, row: int) -> Draft:
        rules = texts.CODE_RULES if self.settings.action == "code" else texts.SOLVE_RULES
        attempt, shown = self.attempts[row], self.shown[row]
        return Draft(
            rules if self.settings.rules else "",
            self.documents[row] if self.settings.carry.tag or self.documents[row] else None,
            texts.task_text(attempt.instruction, self.starts[row]),
            texts.history_of(attempt.turns),
            skills=None if shown is None else texts.listing(shown),
        )

    @staticmethod
    def _new_segment(attempt: Attempt, fitted: texts.Fitted, first: bool) -> None:
        if not first:
            attempt.earlier.append(attempt.segment)
            attempt.invalid.append(False)
        attempt.segment = Segment(list(fitted.ids), position=attempt.position)
        attempt.turns_dropped = max(attempt.turns_dropped, fitted.turns_dropped)
        attempt.document_cut |= fitted.document_cut

    def _record_reply(self, row: int, sample: Sample) -> None:
        """The sampled ids join the row as they are. A reply that was cut off or holds no action is invalid."""
        attempt = self.attempts[row]
        attempt.segment.append(sample.ids, own=True, logprobs=sample.logprobs)
        text = self.format.decode(sample.ids)
        turn = Turn(text, sample.ids, sample.logprobs, sample.finish)
        if sample.finish == "stop":
            turn.code = parse_action(text) if self.settings.action == "tag" else skills.extract_code(text)
        if turn.code is None:
            turn.observation, attempt.invalid[-1] = texts.INVALID, True
        attempt.turns.append(turn)

    def _record_result(self, row: int, result: Any) -> None:
        attempt, turn = self.attempts[row], self.attempts[row].turns[-1]
        turn.observation = prompts.observation(result.output, result.error, self.budgets.observation_chars)
        turn.error, turn.seconds = result.error, result.seconds
        if result.status in _BROKEN:
            attempt.stop = _BROKEN[result.status]
        elif result.done:
            attempt.stop = StopReason.completed
        if result.status == "ok" and self.shown[row] is not None:
            earlier = [t.code for t in attempt.turns[:-1] if t.code is not None]
            redefined = set().union(*map(skills.bound_names, earlier)) if earlier else set()
            used = skills.called_skills(turn.code, set(self.shown[row]) - redefined)
            attempt.skills_called = tuple(dict.fromkeys([*attempt.skills_called, *sorted(used)]))
            attempt.skills_made = tuple(dict.fromkeys([*attempt.skills_made, *self.libraries[row].save(turn.code)]))
