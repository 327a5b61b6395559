"""The one rollout loop: G copies of each chain, played task after task, each copy with its own skill library.

Limits are checked in this order, for each reply:
 1. before sampling: the next reply must fit into ``max_context``            -> context_full
 2. after sampling: the reply hit ``max_tokens_per_turn`` (block not run)     -> max_tokens
 3. no Python block in the reply                                              -> no_code (penalty)
 4. after running the block: killed / crashed / our fault                     -> timeout / died / env_failure
 5. complete_task was called                                                  -> completed
 6. ``max_turns`` replies were made                                           -> max_turns
Whatever the reason, the world is judged as it stands (except after env_failure): r = passed / total unit tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sagelib import chat, prompts, skills
from sagelib.policy import Policy
from sagelib.skills import SkillLibrary
from sagelib.types import Chain, ChainRun, Episode, StopReason, Turn

_BROKEN = {"timeout": StopReason.timeout, "died": StopReason.died, "env_failure": StopReason.env_failure}


class World(Protocol):
    """What the loop needs of a world (`sagelib.appworld.EnginePool` is one). Lists keep their order."""

    def open(self, requests: list[tuple[str, int]]) -> list[list[Any]]: ...
    def step(self, requests: list[tuple[Any, str]]) -> list[Any]: ...
    def judge(self, episodes: list[Any]) -> list[Any]: ...
    def close(self, episodes: list[Any]) -> None: ...


@dataclass(frozen=True)
class RolloutSettings:
    """``skills=False`` is the plain agent: no library in the prompt, nothing kept from task to task."""

    skills: bool = True
    max_turns: int = 6
    max_tokens_per_turn: int = 256
    max_context: int = 1600
    observation_chars: int = prompts.MAX_OBSERVATION
    rules: str = ""
    detector: str = "strict"  # what counts as using a stored skill, see skills.DETECTORS


def rollout(
    chains: Sequence[Chain],
    copies: int,
    policy: Policy,
    world: World,
    format: prompts.ChatFormat,
    settings: RolloutSettings,
    seed: int,
    libraries: Sequence[SkillLibrary] | None = None,
) -> list[ChainRun]:
    """Play ``copies`` copies of each chain, side by side. Returns C*G runs, the copies of a chain adjacent.

    ``libraries``: one starting library per run (default: empty; copied, never shared between copies).
    """
    lengths = {len(chain.task_ids) for chain in chains}
    if len(lengths) != 1:
        raise ValueError(f"chains of one rollout must have equal length, got lengths {sorted(lengths)}")
    runs = [ChainRun(chain, copy) for chain in chains for copy in range(copies)]
    starts = libraries if libraries is not None else [SkillLibrary() for _ in runs]
    held = [SkillLibrary(library.snapshot()) for library in starts]
    for position in range(lengths.pop()):
        groups = world.open([(chain.task_ids[position], copies) for chain in chains])
        handles = [handle for group in groups for handle in group]
        try:
            episodes = _play_task(runs, handles, held, position, policy, world, format, settings, seed + position)
            judge(episodes, handles, world)
        finally:
            world.close(handles)
        for run, episode, library in zip(runs, episodes, held, strict=True):
            run.episodes.append(episode)
            run.libraries.append(library.snapshot())
    return runs


def _play_task(
    runs: list[ChainRun],
    handles: list[Any],
    libraries: list[SkillLibrary],
    position: int,
    policy: Policy,
    world: World,
    format: prompts.ChatFormat,
    settings: RolloutSettings,
    seed: int,
) -> list[Episode]:
    """One task of every run, turn by turn in lock-step, until each has a stop reason."""
    usable = load_skills(world, handles, libraries) if settings.skills else [None] * len(runs)
    episodes = [
        _start_episode(run, handle, library, shown, position, format, settings)
        for run, handle, library, shown in zip(runs, handles, libraries, usable, strict=True)
    ]
    session = policy.start([e.segment.prompt_ids for e in episodes], seed)
    live = list(range(len(episodes)))
    for turn in range(settings.max_turns):
        live = _within_context(live, episodes, settings)
        if not live:
            break
        samples = session.generate(live, settings.max_tokens_per_turn)
        for row, sample in zip(live, samples, strict=True):
            _record_reply(episodes[row], sample, format)
        live = [row for row in live if episodes[row].stop is StopReason.max_turns]
        results = world.step([(handles[row], episodes[row].turns[-1].code) for row in live])
        for row, result in zip(live, results, strict=True):
            _record_result(episodes[row], result, libraries[row], usable[row], settings)
        live = [row for row in live if episodes[row].stop is StopReason.max_turns]
        if turn + 1 < settings.max_turns:
            _append_observations(live, episodes, session, format)
    return episodes


def load_skills(world: World, handles: list[Any], libraries: list[SkillLibrary]) -> list[dict[str, str]]:
    """Define the stored skills in their tasks' shells. Where a library fails as a whole, skill by skill: one drops alone.

    Returns per row the skills that loaded (name -> source): these are callable, and these the prompt shows.
    """
    rows = [row for row, library in enumerate(libraries) if len(library)]
    whole = world.step([(handles[row], "\n".join(source for _, source in libraries[row])) for row in rows])
    loaded = [library.snapshot() for library in libraries]
    failed = [row for row, result in zip(rows, whole, strict=True) if result.status != "ok"]
    for row in failed:
        loaded[row] = {}
    for i in range(max((len(libraries[row]) for row in failed), default=0)):
        part = [row for row in failed if i < len(libraries[row])]
        items = [list(libraries[row])[i] for row in part]
        results = world.step([(handles[row], source) for row, (_, source) in zip(part, items, strict=True)])
        for row, (name, source), result in zip(part, items, results, strict=True):
            if result.status == "ok":
                loaded[row][name] = source
    return loaded


def _start_episode(
    run: ChainRun,
    handle: Any,
    library: SkillLibrary,
    shown: dict[str, str] | None,
    position: int,
    format: prompts.ChatFormat,
    settings: RolloutSettings,
) -> Episode:
    instruction = handle.task.instruction
    message = prompts.user_message(instruction, shown, settings.rules)
    names = tuple(shown or ())
    dropped = tuple(name for name, _ in library if name not in names) if shown is not None else ()
    return Episode(
        run.chain.task_ids[position],
        run.chain.scenario_id,
        position,
        instruction,
        chat.begin(format, message, position),
        skills_shown=names,
        skills_dropped=dropped,
    )


def _within_context(live: list[int], episodes: list[Episode], settings: RolloutSettings) -> list[int]:
    fits = []
    for row in live:
        if len(episodes[row].segment.ids) + settings.max_tokens_per_turn > settings.max_context:
            episodes[row].stop = StopReason.context_full
        else:
            fits.append(row)
    return fits


def _record_reply(episode: Episode, sample: Any, format: prompts.ChatFormat) -> None:
    """The sampled ids join the segment as they are; a reply that cannot be run ends the episode."""
    episode.segment.append(sample.ids, own=True, logprobs=sample.logprobs)
    text = format.decode(sample.ids)
    turn = Turn(text, sample.ids, sample.logprobs, sample.finish)
    episode.turns.append(turn)
    if sample.finish == "length":
        episode.stop = StopReason.max_tokens
    else:
        turn.code = skills.extract_code(text)
        if turn.code is None:
            episode.stop = StopReason.no_code


def _record_result(
    episode: Episode, result: Any, library: SkillLibrary, shown: dict[str, str] | None, settings: RolloutSettings
) -> None:
    """Observation, stop reason, use of stored skills, and (when the block ran without error) the skills it made."""
    turn = episode.turns[-1]
    turn.observation = prompts.observation(result.output, result.error, settings.observation_chars)
    turn.error, turn.seconds = result.error, result.seconds
    if result.status in _BROKEN:
        episode.stop = _BROKEN[result.status]
    elif result.done:
        episode.stop = StopReason.completed
    if result.status != "ok" or shown is None:
        return
    # A name bound by an earlier block of this task is no longer the stored skill, even if that block failed afterwards.
    redefined = set().union(*(skills.bound_names(earlier.code) for earlier in episode.turns[:-1]))
    used = skills.DETECTORS[settings.detector](turn.code, set(shown) - redefined)
    episode.skills_called = tuple(dict.fromkeys([*episode.skills_called, *sorted(used)]))
    episode.skills_made = tuple(dict.fromkeys([*episode.skills_made, *library.save(turn.code)]))


def _append_observations(live: list[int], episodes: list[Episode], session: Any, format: prompts.ChatFormat) -> None:
    """The observations join the sequences; where a chat template rewrites history, a new sequence begins instead."""
    appended, chunks = [], []
    for row in live:
        rewritten = chat.rewritten(format, episodes[row])
        if rewritten is not None:
            episodes[row].segment.split(rewritten)
            session.replace(row, rewritten)
            continue
        turn = episodes[row].turns[-1]
        chunk = format.observation_ids(turn.observation, closed=turn.token_ids[-1] in format.end_ids)
        episodes[row].segment.append(chunk, own=False)
        appended.append(row)
        chunks.append(chunk)
    session.extend(appended, chunks)


def judge(episodes: Sequence[Episode], handles: list[Any], world: World) -> None:
    """Outcomes of all scored episodes; a judge that failed makes an environment failure, never a zero."""
    rows = [row for row, episode in enumerate(episodes) if episode.scored]
    for row, outcome in zip(rows, world.judge([handles[row] for row in rows]), strict=True):
        episode = episodes[row]
        if outcome.status != "judged":
            episode.stop = StopReason.env_failure
        else:
            episode.fraction, episode.success, episode.failures = outcome.fraction, outcome.success, outcome.failures
