"""The loop of SkillRise: solve, curate, solve, ..., solve. G copies of each sequence, each with a document of its own.

One policy plays both roles on the `Policy` and `World` protocols of the repository. The world is judged as it stands when a
task ends; an environment failure is never scored and never curated.
"""

from __future__ import annotations

from collections.abc import Sequence

from sagelib import prompts
from sagelib import rise_prompts as texts
from sagelib.policy import Policy
from sagelib.rise_document import Carry, first_lines, parse_written, updated
from sagelib.rise_prompts import Draft
from sagelib.rise_task import Conversations, Task
from sagelib.rise_types import Curation, LoopSettings, Trial
from sagelib.rollout import World, judge
from sagelib.skills import SkillLibrary
from sagelib.types import Chain, Segment


def play_trials(
    chains: Sequence[Chain],
    copies: int,
    policy: Policy,
    world: World,
    format: prompts.ChatFormat,
    settings: LoopSettings,
    seed: int,
    documents: Sequence[str] | None = None,
) -> list[Trial]:
    """Play ``copies`` copies of each sequence, side by side; the copies of a sequence are adjacent in the result.

    ``documents``: what each trial starts with (for evaluation; training starts with nothing, and nothing outlives a
    trial). Equal seeds, weights and worlds give equal trials.
    """
    lengths = {len(chain.task_ids) for chain in chains}
    if len(lengths) != 1:
        raise ValueError(f"sequences of one rollout must have equal length, got lengths {sorted(lengths)}")
    trials = [Trial(chain, copy) for chain in chains for copy in range(copies)]
    held = list(documents) if documents is not None else [""] * len(trials)
    if len(held) != len(trials):
        raise ValueError(f"{len(held)} documents given for {len(trials)} trials")
    held = [first_lines(text, format, settings.budgets.document_tokens) for text in held]
    libraries = [SkillLibrary() for _ in trials]
    K = lengths.pop()
    for position in range(K):
        handles = [h for group in world.open([(c.task_ids[position], copies) for c in chains]) for h in group]
        try:
            task = Task(trials, handles, held, libraries, position, policy, world, format, settings, f"{seed}/{position}")
            attempts = task.play()
            judge(attempts, handles, world)
        finally:
            world.close(handles)
        for trial, attempt, library, document in zip(trials, attempts, libraries, held, strict=True):
            trial.episodes.append(attempt)
            trial.libraries.append(library.snapshot())
            trial.documents.append(document)
        if position + 1 < K and settings.carry.tag:
            held = curate(trials, task.starts, held, policy, format, settings, f"{seed}/{position}/curate")
    return trials


def curate(
    trials: Sequence[Trial],
    starts: Sequence[str],
    held: Sequence[str],
    policy: Policy,
    format: prompts.ChatFormat,
    settings: LoopSettings,
    seed: str,
) -> list[str]:
    """Every trial whose last task was scored writes; returns what each carries on, and records its `Curation`."""
    budgets, carry = settings.budgets, settings.carry
    rules = texts.REFLECT_RULES if carry is Carry.reflection else texts.CURATE_RULES
    rows, fresh = [], []
    for row, trial in enumerate(trials):
        attempt = trial.episodes[-1]
        draft = Draft(
            rules if settings.rules else "", held[row], texts.task_text(attempt.instruction, starts[row]),
            texts.history_of(attempt.turns), f"{texts.outcome_text(attempt.success)}\nWrite the {carry.tag}.",
        )
        fitted = texts.fit(draft, format, budgets.max_context - budgets.writer_tokens, budgets.trajectory_tokens,
                           budgets.curate_window) if attempt.scored else None
        if fitted is not None:
            rows.append(row)
            fresh.append(fitted.ids)
    talk = Conversations(policy, seed)
    talk.begin(rows, fresh)
    samples = dict(zip(rows, talk.generate(rows, budgets.writer_tokens), strict=True))
    after = list(held)
    for row, ids in zip(rows, fresh, strict=True):
        position, sample = trials[row].episodes[-1].position, samples[row]
        segment = Segment(list(ids), position=position)
        segment.append(sample.ids, own=True, logprobs=sample.logprobs)
        text = format.decode(sample.ids)
        written = parse_written(text, carry.tag)   # a reply cut off after its closing tag is complete enough
        if written is not None:
            after[row] = updated(carry, held[row], written, format, budgets.document_tokens)
        trials[row].curations.append(Curation(position, segment, text, written is not None, held[row], after[row]))
    for row in set(range(len(trials))) - set(rows):
        trials[row].curations.append(None)
    return after
