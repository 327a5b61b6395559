"""The table of the main job's notebooks. Plain data (setup-time code reads it).

To add one: put notebooks/NAME.ipynb beside the others (one parameters cell with `profile`, and `seed` if it has one; the last
cell calls run.finish) and add its line here, after what it needs.
"""

from __future__ import annotations

from sagelib.graph import Step

GRAPH = (
    Step("00_tour", per_seed=False, minutes=20),
    Step("01_collect", per_seed=False, minutes=30),
    # a seed is one of everything from here on: start policies differ by more than RL changes them (LOG.md, 2026-12-01)
    Step("02_sft", needs=("01_collect",), minutes=60),
    Step("03_train", needs=("02_sft",), variants=({"method": "sft_grpo"}, {"method": "sage"}), minutes=120),
    Step("04_evaluate", needs=("02_sft", "03_train"), minutes=60,
         variants=({"method": "base"}, {"method": "sft"}, {"method": "sft_grpo"}, {"method": "sage"})),
    Step("90_figures", needs=("03_train", "04_evaluate"), per_seed=False, all_seeds=True, minutes=20),
)
