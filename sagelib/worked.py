"""The worked demonstration in an LLM's prompt: one task of the imitation set, played in the engine with look-ups in front.

It is made when the policy is made and kept with it (prompt.json): text of AppWorld's apis is not committed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sagelib import prompts
from sagelib.chat import LLMFormat, Message, llm_message
from sagelib.datasets import load_expert
from sagelib.expert import expert_replies
from sagelib.policy import ScriptedPolicy
from sagelib.rollout import RolloutSettings, World, rollout
from sagelib.types import Chain


def look_ups(expert: dict[str, Any]) -> list[str]:
    """Replies that read the documentation of what the expert calls first: apps, apis of one app, one api."""
    sources = [h["source"] for h in [*expert["helpers"], expert["main"]]] + [expert["main"]["call"]]
    calls = [c for c in re.findall(r"apis\.(\w+)\.(\w+)\(", "\n".join(sources)) if c[0] != "supervisor"]
    if not calls:
        raise ValueError("the expert of the worked demonstration calls no app; choose another task")
    app, api = calls[-1]
    shows = (("I look which apps there are.", "show_app_descriptions()"),
             (f"I look what {app} can do.", f"show_api_descriptions(app_name={app!r})"),
             (f"I read how {api} is called.", f"show_api_doc(app_name={app!r}, api_name={api!r})"))
    return [prompts.reply(thought, f"print(apis.api_docs.{call})") for thought, call in shows]


def shortest(world_dir: Path, chains: Sequence[Chain]) -> Chain:
    """The chain of one task whose expert writes least (and reads nothing first): a short prompt."""
    def length(task_id: str) -> int:
        expert = load_expert(world_dir, task_id)
        return sum(len(text) for text, _ in expert_replies(expert, set(), "skills")) + 10**6 * bool(expert.get("read"))
    best = min((chain for chain in chains), key=lambda chain: length(chain.task_ids[0]))
    return Chain(best.scenario_id, best.task_ids[:1])


def play(world_dir: Path, world: World, format: LLMFormat, chain: Chain, observation_chars: int) -> list[Message]:
    """The turns, user first, assistant last; observations cut to ``observation_chars``. RuntimeError if the judge fails it."""
    expert = load_expert(world_dir, chain.task_ids[0])
    replies = look_ups(expert) + [text for text, _ in expert_replies(expert, set(), "skills")]
    policy = ScriptedPolicy(format, lambda row, turn, ids: replies[turn])
    settings = RolloutSettings(max_turns=len(replies), max_tokens_per_turn=10_000, max_context=1_000_000,
                               observation_chars=observation_chars)
    [run] = rollout([chain], 1, policy, world, format, settings, seed=0)
    episode = run.episodes[0]
    if not episode.success:
        raise RuntimeError(f"the worked demonstration of {chain.task_ids[0]} failed: {episode.stop}, {episode.failures}")
    first = llm_message(prompts.user_message(episode.instruction, {}))
    messages = [{"role": "user", "content": first}]
    for i, turn in enumerate(episode.turns):
        messages.append({"role": "assistant", "content": turn.text})
        if i + 1 < len(episode.turns):
            messages.append({"role": "user", "content": turn.observation})
    return messages
