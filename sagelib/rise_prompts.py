"""What the two roles read. Texts are short, for a policy trained from scratch; a pre-trained one gets the rules in front.

A prompt has parts that are never cut (rules, task, start state, what is asked) and parts that give way when the budget is
short, in this order: the oldest turns of the history, one by one; then the end of the document. When even that is too
much, `fit` says so (None) and the episode ends as ``context_full``: nothing raises, no instruction is ever cut.
(The released code aborts the run in two of its worlds and silently drops the instructions in the third.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import Field, model_validator

from sagelib.config import Positive, StrictConfig
from sagelib.prompts import ChatFormat
from sagelib.rise_document import first_lines

SOLVE_RULES = """You act in a text world. Think step by step, then reply with one action in <action></action>.
The document below was distilled from earlier tasks of the same kind: use what surely applies, ignore the rest."""
CODE_RULES = """You solve tasks by writing Python. Each reply: one short thought, then one ```python block.
The document below was distilled from earlier tasks of the same kind: use what surely applies, ignore the rest."""
CURATE_RULES = """You maintain a skill document for one kind of task. Revise it after the attempt below:
- abstract, do not memorise: general concepts in place of names and numbers of this one task;
- state only what the attempt shows; after a failure name the concrete pitfall;
- be concise, keep what still holds, do not copy the attempt. Sections: When to use, Workflow, Pitfalls.
Think first, then write the whole revised document in <skill></skill>."""
REFLECT_RULES = """Look at the attempt below. In one or two sentences: what should be done differently, or again, in a later task
of this kind? Think first, then write it in <remark></remark>."""
EMPTY, OMITTED = "empty", "(earlier turns left out)"
INVALID = "No action was found in the reply."


class Budgets(StrictConfig):
    """Sizes in tokens and turns. ConfigError for a document that its writer's reply could not hold."""

    max_context: Positive = 1600             # a whole training sequence
    reply_tokens: Positive = 120             # one reply of the solver
    writer_tokens: Positive = 320            # the curator's reply: thought, document and tags
    document_tokens: Positive = 240
    trajectory_tokens: Positive = 600        # history inside a prompt, of either role
    window: Positive = 15                    # turns of history in a rebuilt prompt of the solver
    curate_window: Positive = 50             # turns that the curator sees
    turns_per_prompt: Positive | None = None  # 1: every turn has a prompt of its own (as released); None: appended while it fits
    observation_chars: Annotated[int, Field(ge=2)] = 1000

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.document_tokens + 16 > self.writer_tokens:
            raise ValueError(f"a document of document_tokens = {self.document_tokens} and its tags do not fit into a reply of "
                             f"writer_tokens = {self.writer_tokens}")
        if max(self.reply_tokens, self.writer_tokens) >= self.max_context:
            raise ValueError(f"max_context = {self.max_context} has no room for a prompt beside a reply of "
                             f"{max(self.reply_tokens, self.writer_tokens)} tokens")
        return self


@dataclass(frozen=True)
class Draft:
    """A prompt before it is fitted. ``document`` None: the mode carries none, "" is an empty one."""

    rules: str
    document: str | None
    task: str
    history: tuple[str, ...] = ()
    ask: str = ""
    skills: str | None = None


@dataclass(frozen=True)
class Fitted:
    """The prompt's ids, and what had to give way."""

    ids: list[int] = field(repr=False)
    turns_dropped: int = 0
    document_cut: bool = False


def text_of(draft: Draft, kept: int, document: str | None) -> str:
    """The message with the last ``kept`` turns."""
    parts = [draft.rules]
    parts.append("" if draft.skills is None else f"Skills:\n{draft.skills}")
    parts.append("" if document is None else f"Document:\n{document or EMPTY}")
    parts.append(draft.task)
    turns = list(draft.history[len(draft.history) - kept:])
    if kept < len(draft.history):
        turns.insert(0, OMITTED)
    parts += ["\n".join(turns), draft.ask]
    return "\n\n".join(part for part in parts if part)


def fit(draft: Draft, format: ChatFormat, room: int, trajectory_tokens: int, window: int) -> Fitted | None:
    """The prompt in at most ``room`` tokens, the history in at most ``trajectory_tokens``; None when it cannot be."""
    sizes = [len(format.encode(turn + "\n")) for turn in draft.history]
    kept = total = 0
    for size in reversed(sizes[-window:]):
        if total + size > trajectory_tokens:
            break
        kept, total = kept + 1, total + size
    while (ids := format.prompt_ids(text_of(draft, kept, draft.document))) and len(ids) > room and kept:
        kept -= 1
    dropped = len(draft.history) - kept
    if len(ids) <= room:
        return Fitted(ids, dropped)
    return _with_less_document(draft, format, room, len(ids), dropped)


def _with_less_document(draft: Draft, format: ChatFormat, room: int, size: int, dropped: int) -> Fitted | None:
    """No history is left: the document loses its end, all of it if need be."""
    limit = len(format.encode(draft.document)) if draft.document else 0
    while limit > 0:
        limit = max(0, limit - max(1, size - room))
        ids = format.prompt_ids(text_of(draft, 0, first_lines(draft.document, format, limit)))
        size = len(ids)
        if size <= room:
            return Fitted(ids, dropped, document_cut=True)
    return None


def turn_text(action: str | None, observation: str) -> str:
    """One turn of a history: what was done (None: nothing that could be read) and what came of it."""
    return f"Action: {action or '-'}\nObservation: {observation}"


def task_text(instruction: str, start: str) -> str:
    return f"Task: {instruction}" + (f"\n{start}" if start else "")


def outcome_text(success: bool) -> str:
    return "Outcome: SUCCESS" if success else "Outcome: FAILURE (task not completed)"


def listing(skills: dict[str, str]) -> str:
    """The library as SAGE's prompt shows it."""
    return "\n".join(skills.values()) if skills else "none"


def history_of(turns: Sequence) -> tuple[str, ...]:
    """Turns (types.Turn) as the texts of a history."""
    return tuple(turn_text(turn.code, turn.observation) for turn in turns)
