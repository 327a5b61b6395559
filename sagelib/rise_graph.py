"""The notebooks of SkillRise, in their order, as a table of their own: in text worlds, without any part of the main job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sagelib.graph import Node, Step, expand
from sagelib.rise_worlds import of_profile

METHODS = ("skillrise", "no_carry", "grpo")
RISE = (
    # one start policy for all training seeds, as in the main job
    Step("19_skillrise_sft", per_seed=False, variants=({"seed": 0},), minutes=60),
    Step("20_skillrise_train", needs=("19_skillrise_sft",), variants=tuple({"method": m} for m in METHODS), minutes=120),
    Step("21_skillrise_evaluate", needs=("19_skillrise_sft", "20_skillrise_train"), minutes=60,
         variants=({"method": "sft"}, *({"method": m} for m in METHODS))),
    Step("22_skillrise_scaling", needs=("20_skillrise_train",), minutes=60,
         variants=({"method": "skillrise"}, {"method": "no_carry"})),
    Step("29_skillrise_figures", needs=("20_skillrise_train", "21_skillrise_evaluate", "22_skillrise_scaling"), per_seed=False,
         all_seeds=True, minutes=20),
)


def rise_nodes(profile: str, seeds: Sequence[int], world: str | None = None) -> list[Node]:
    """All nodes, each with its world (None: the profile's shop), so that a run's id holds the hash of that world."""
    world = world or of_profile("shop", profile)
    return [replace(node, parameters=node.parameters | {"world": world}) for node in expand(RISE, profile, seeds)]
