"""The grid of ablations: which training and evaluation runs each study compares. Plain data (setup-time code reads it).

A cell is a path through the graph, e.g. 02_sft -> 03_train -> 04_evaluate, in which each run has all before it as inputs;
cells of several studies that share a run share it (runs are addressed by content). To add a cell: a line below. ``smoke``
marks what the tests run.
Budgets are the main job's: 30 steps of 64 episodes = 1920 episodes; a chain length of 3 takes 27 steps of 72 = 1944.
"""

from __future__ import annotations

from typing import Any

from sagelib.graph import Cell, Study

SFT = ("02_sft", {})
SAGE, GRPO = {"method": "sage"}, {"method": "sft_grpo"}
WARM_UP = ("03_train", GRPO | {"init": "base"})   # single tasks and outcome reward; the paper does not print its warm-up's


def policy(method: str, label: str, *, smoke: bool = True, **evaluation: Any) -> Cell:
    """Base or SFT as it is, evaluated as in the main job."""
    return Cell(label, (SFT, ("04_evaluate", {"method": method} | evaluation)), smoke)


def trained(label: str, train: dict[str, Any], *, smoke: bool = False, **evaluation: Any) -> Cell:
    """A run of 03_train, evaluated as in the main job."""
    method = {"method": train["method"]}
    return Cell(label, (SFT, ("03_train", train), ("04_evaluate", method | evaluation)), smoke)


def started(label: str, start: tuple[str, dict[str, Any]], init: str, *, smoke: bool = False) -> Cell:
    """SAGE from a start that a run of its own makes of Base, evaluated as in the main job."""
    return Cell(label, (SFT, start, ("03_train", SAGE | {"init": init}), ("04_evaluate", SAGE)), smoke)


def stream(retrieval: str, *, smoke: bool = False) -> Cell:
    """The main job's SAGE policy on a stream of tasks, with one library for all scenarios."""
    evaluation = SAGE | {"protocol": "stream", "retrieval": retrieval}
    return Cell(retrieval, (SFT, ("03_train", SAGE), ("04_evaluate", evaluation)), smoke)


MAIN = (policy("base", "Base"), policy("sft", "SFT"), trained("SFT+GRPO", GRPO, smoke=True), trained("SAGE", SAGE, smoke=True))

STUDIES = (
    Study("10_ablate_reward", "reward", (
        trained("skill-integrated", SAGE, smoke=True),
        trained("outcome", SAGE | {"credit": "outcome"}),
        trained("chain", SAGE | {"credit": "chain"}),
        trained("mention counts as use", SAGE | {"detector": "name_match"}),
    )),
    Study("11_ablate_chain_length", "chain_length", (
        trained("1", SAGE | {"chain_length": 1, "credit": "outcome"}),
        trained("2", SAGE, smoke=True),
        trained("3", SAGE | {"chain_length": 3, "episodes_per_step": 72, "steps": 27}),
    )),
    Study("12_ablate_retrieval", "retrieval", (
        trained("own library per scenario", SAGE, smoke=True),
        stream("same_scenario"), stream("query_ngram", smoke=True), stream("query_embedding"), stream("skill_embedding"),
        stream("bm25"), stream("random"), stream("all"), stream("none"),
    )),
    Study("13_ablate_initialization", "initialization", (
        policy("base", "Base, no RL"),
        trained("Base", SAGE | {"init": "base"}, smoke=True),
        # not in smoke: its Base solves nothing, and so there is nothing to distil (tests/test_self_distill.py runs 05)
        started("self-distillation", ("05_self_distill", {}), "self_distilled"),
        started("RL warm-up", WARM_UP, "rl_warm_up", smoke=True),
        policy("sft", "SFT, no RL"),
        trained("SFT", SAGE, smoke=True),
    )),
    Study("14_ablate_library", "library", (
        policy("sft", "SFT, library"),
        policy("sft", "SFT, no library", skills=False, smoke=False),
        trained("SAGE, library", SAGE, smoke=True),
        trained("SAGE, no library", SAGE, skills=False, smoke=True),
        trained("SFT+GRPO, library", GRPO, skills=True),
        trained("SFT+GRPO, no library", GRPO, smoke=True),
        policy("base", "Base, library", skills=True, smoke=False),
        policy("base", "Base, no library", smoke=False),
    )),
    Study("15_label_free_chains", "label_free", (
        trained("chains of one scenario", SAGE, smoke=True),
        trained("chains of similar instructions", SAGE | {"chains": "similar"}),
    )),
    Study("16_skill_analysis", "skills", MAIN),
    Study("17_budget_fair", "budget", (
        trained("GRPO", GRPO | {"init": "base"}),
        trained("SFT+GRPO", GRPO, smoke=True),
        trained("SFT+GRPO, 8 copies", GRPO | {"group_size": 8}),
        trained("SAGE", SAGE, smoke=True),
        trained("SAGE, 8 copies", SAGE | {"group_size": 8}),
    )),
    Study("18_temperature", "temperature", (
        policy("sft", "SFT"), trained("SAGE", SAGE, smoke=True),
        policy("sft", "SFT, 0.1", smoke=False, temperature=0.1), trained("SAGE, 0.1", SAGE, temperature=0.1),
        policy("sft", "SFT, 1", smoke=False, temperature=1.0), trained("SAGE, 1", SAGE, temperature=1.0),
    )),
    Study("91_tables", "all", needs=(
        "10_ablate_reward", "11_ablate_chain_length", "12_ablate_retrieval", "13_ablate_initialization", "14_ablate_library",
        "15_label_free_chains", "16_skill_analysis", "17_budget_fair", "18_temperature",
    )),
)


def study(notebook: str, profile: str) -> Study:
    """A study with the cells that a profile has. KeyError when there is no such study."""
    return {s.notebook: s.of(profile) for s in STUDIES}[notebook]
