"""Numbers that the paper prints, for the shape of a comparison only: another world, another model, another scale.

SAGE, arXiv 2512.17102 (ACL 2026): AppWorld test-normal, Qwen2.5-32B-Instruct, (TGC %, SGC %, steps, tokens); the mean over
three evaluations of one checkpoint. Taken from copies and reviews of the paper, not from its own tables; see `NOTE`.
Ours are of a generated world and a policy of 2.6 million parameters: only the order of rows can be compared, if anything.
"""

from __future__ import annotations

import pandas as pd

NOTE = "AppWorld test-normal, Qwen2.5-32B (arXiv 2512.17102): another world and another scale, not comparable in size"

MAIN = {
    "skill library agent, prompt only": (30.7, 19.6, 13.4, 2988),
    "SFT": (55.2, 41.7, 11.4, 1340),
    "SFT+GRPO": (66.1, 51.2, 12.8, 1284),
    "GRPO": (69.2, 51.8, 16.4, 3613),
    "SAGE": (72.0, 60.7, 12.1, 1475),
}
# Systems that nothing here plays
OTHERS = {"LOOP": (71.3, 53.6, None, None), "GPT-4o ReAct": (48.8, 32.1, None, None), "o1 ReAct": (61.9, 41.1, None, None),
          "Claude 3.5 Sonnet ReAct": (57.1, 41.1, 15.7, None)}
CHALLENGE = {
    "Base": (15.3, 7.0, 18.7, None), "SFT": (37.2, 20.9, 16.2, None), "GRPO": (40.7, 26.9, 21.9, 5211),
    "SAGE": (50.1, 32.4, 17.3, 1807), "LOOP": (45.7, 26.6, None, None), "GPT-4o ReAct": (30.2, 13.0, None, None),
    "o1 ReAct": (36.7, 19.4, None, None), "Claude 3.5 Sonnet ReAct": (49.2, 28.8, 21.8, None),
}
STUDY: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "reward": {"skill-integrated": MAIN["SAGE"], "outcome": (69.8, 55.4, 13.1, 1469), "chain": (67.9, 56.6, 15.7, 1361)},
    "chain_length": {"2": MAIN["SAGE"], "3": (70.6, 54.8, 14.3, 2585)},
    "retrieval": {"same_scenario": MAIN["SAGE"], "query_ngram": (72.0, 60.1, 12.7, 1466),
                  "query_embedding": (69.6, 59.5, 11.8, 1335), "skill_embedding": (66.3, 56.0, 14.5, 1692)},
    "initialization": {"Base": (40.7, 25.6, 11.9, 2532), "self-distillation": (66.5, 53.6, 13.1, 2321),
                       "RL warm-up": (68.3, 55.3, 16.0, 2556), "SFT": MAIN["SAGE"]},
    "library": {"SFT, library": MAIN["SFT"], "SFT, no library": (54.8, 39.9, 13.5, 1611),
                "SAGE, library": MAIN["SAGE"], "SAGE, no library": (71.4, 54.8, 16.0, 1937),
                "Base, library": MAIN["skill library agent, prompt only"], "Base, no library": (34.7, 14.9, 16.4, 3704)},
    "label_free": {"chains of one scenario": MAIN["SAGE"], "chains of similar instructions": (72.8, 62.5, 13.0, 1535)},
    "budget": {"GRPO": MAIN["GRPO"], "SFT+GRPO": MAIN["SFT+GRPO"], "SAGE": MAIN["SAGE"]},
    "skills": {"Base": MAIN["skill library agent, prompt only"], "SFT": MAIN["SFT"], "SFT+GRPO": MAIN["SFT+GRPO"],
               "SAGE": MAIN["SAGE"]},
    "others": OTHERS | {"SAGE": MAIN["SAGE"]},
}
METRICS = ("tgc", "sgc", "steps", "tokens")
SKILL_METRICS = ("skills", "used", "multi_api", "solved_when_used")
# Skill library of an evaluation: skills stored, skills used, share of skills with several API calls, solved when used
SKILLS = {"Base": (439, 101, 82.5, 31.0), "SFT": (336, 205, None, 51.0), "SAGE": (361, 230, 98.6, 72.0)}


def figure(study: str, cell: str, metric: str, split: str) -> float | None:
    """One number of the paper, None where it has none. ``cell``: as in STUDY; of SKILLS what stands before a comma counts."""
    if metric in SKILL_METRICS:
        row = SKILLS.get(cell.split(",")[0], ()) if split == "test_normal" else ()
        return row[SKILL_METRICS.index(metric)] if row else None
    row = CHALLENGE.get(cell, ()) if split == "test_challenge" else STUDY[study].get(cell, ())
    return row[METRICS.index(metric)] if row else None


def study(name: str) -> pd.DataFrame:
    """The paper's rows of a study: cell, tgc, sgc, steps, tokens, source. Empty when it has no such study."""
    rows = [(cell, *values, NOTE) for cell, values in STUDY.get(name, {}).items()]
    return pd.DataFrame(rows, columns=["cell", "tgc", "sgc", "steps", "tokens", "source"])


def skills() -> pd.DataFrame:
    """The paper's figures of the library: cell, skills, used, multi_api, solved_when_used, source."""
    rows = [(cell, *values, NOTE) for cell, values in SKILLS.items()]
    return pd.DataFrame(rows, columns=["cell", "skills", "used", "multi_api", "solved_when_used", "source"])
