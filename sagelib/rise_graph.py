"""The notebooks of SkillRise, in their order, as tables of their own beside the main job's.

RISE plays in text worlds, without any part of the main job. CODE plays in the generated AppWorld world and goes on from the main
job's SFT policy: there all that can be carried is compared, SAGE's library among it (`23_sage_vs_skillrise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sagelib.graph import Node, Step, expand
from sagelib.main_graph import GRAPH
from sagelib.rise_worlds import KINDS, kind_of, of_profile

METHODS = ("skillrise", "no_carry", "grpo")
CARRYING = ("skillrise", "reflection", "skills", "both", "no_carry", "grpo")
VERSUS = "23_sage_vs_skillrise"


def table(methods: Sequence[str], start: Sequence[Step] = (), plain: Sequence[dict] = ({},)) -> tuple[Step, ...]:
    """19 to 29 for these methods; ``start``: what 19 needs, ``plain``: how the start policy itself is evaluated."""
    own = tuple({"method": method} for method in methods)
    return (
        # one start policy for all training seeds
        Step("19_skillrise_sft", needs=tuple(step.notebook for step in start), per_seed=False, variants=({"seed": 0},),
             minutes=60),
        Step("20_skillrise_train", needs=("19_skillrise_sft",), variants=own, minutes=120),
        Step("21_skillrise_evaluate", needs=("19_skillrise_sft", "20_skillrise_train"), minutes=60,
             variants=(*({"method": "sft"} | one for one in plain), *own)),
        Step("22_skillrise_scaling", needs=("20_skillrise_train",), minutes=60,
             variants=({"method": "skillrise"}, {"method": "no_carry"})),
        Step("29_skillrise_figures", needs=("20_skillrise_train", "21_skillrise_evaluate", "22_skillrise_scaling"),
             per_seed=False, all_seeds=True, minutes=20),
    )


RISE = table(METHODS)
MAIN = {step.notebook: step for step in GRAPH}
ONE_START = replace(MAIN["02_sft"], per_seed=False, variants=({"seed": 0},))


def code_table(methods: Sequence[str], plain: Sequence[str]) -> tuple[Step, ...]:
    """The table of the AppWorld world for these methods; ``plain``: what the start policy itself carries."""
    return (
        MAIN["01_collect"], ONE_START, MAIN["03_train"],
        replace(MAIN["04_evaluate"], variants=MAIN["03_train"].variants),   # of what was trained
        *table(methods, (ONE_START,), tuple({"carry": carry} for carry in plain)),
        Step(VERSUS, needs=("03_train", "04_evaluate", "20_skillrise_train", "21_skillrise_evaluate"), per_seed=False,
             all_seeds=True, minutes=20),
    )


CODE = code_table(CARRYING, ("document", "skills", "none"))
CODE_SMOKE = code_table(("skillrise", "skills", "no_carry"), ("document",))   # the tests': they have ten minutes for everything
NOTEBOOKS = tuple(step.notebook for step in (*RISE, CODE[-1]))   # those that have a world of SkillRise


def world_of(notebook: str, profile: str, world: str | None = None) -> str:
    """The world that a notebook plays in: the one asked for, else the profile's shop, or AppWorld for `VERSUS`.

    ValueError for `VERSUS` in a world where no code runs.
    """
    if notebook == VERSUS and world is not None and KINDS[kind_of(world)].action != "code":
        raise ValueError(f"{VERSUS} compares what can be carried where code runs, not in {world}: use --world appworld, or none")
    return world or of_profile("appworld" if notebook == VERSUS else "shop", profile)


def rise_nodes(profile: str, seeds: Sequence[int], world: str | None = None) -> list[Node]:
    """All nodes, each with its world (None: the profile's shop), so that a run's id holds the hash of that world."""
    world = world or of_profile("shop", profile)
    steps = RISE if KINDS[kind_of(world)].action == "tag" else CODE_SMOKE if profile == "smoke" else CODE
    nodes = expand(steps, profile, seeds)
    return [replace(node, parameters=node.parameters | {"world": world}) if node.notebook in NOTEBOOKS else node
            for node in nodes]
