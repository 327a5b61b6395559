"""Numbers that depend on the size of the machine, one dict per profile (plain data: setup reads it before pydantic exists).

A profile lists what differs from the defaults of the classes in config.py; a notebook's parameter that is not None
overrides both. WORLDS says how each generated world is made; PROFILE_WORLD which one a profile uses.
"""

# plan: scenario draws per family in each data set (see sagelib/engine/generate.py)
WORLDS: dict[str, dict] = {
    "mini": {"seed": 7, "profile": "laptop",
             "plan": {"train": 8, "demos": 12, "dev": 2, "test_normal": 4, "test_challenge": 4}},
    "smoke": {"seed": 7, "profile": "smoke",
              "plan": {"train": 1, "demos": 1, "dev": 1, "test_normal": 1, "test_challenge": 1}},
}

PROFILE_WORLD: dict[str, str] = {"smoke": "smoke", "laptop": "mini", "gpu": "mini", "paper": "mini"}

PROFILES: dict[str, dict[str, dict]] = {
    "smoke": {
        "collect": {"demos": 8, "pairs": 200},
        "sft": {"pair_steps": 5, "trace_steps": 5, "batch_size": 8},
        "train": {"steps": 2, "chains_per_step": 1, "group_size": 2},
        "evaluate": {"tasks": 3, "samples": 1},
    },
    "laptop": {"collect": {}, "sft": {}, "train": {}, "evaluate": {}},
    "gpu": {
        "collect": {}, "sft": {},
        "train": {"steps": 60, "chains_per_step": 8, "group_size": 8, "learning_rate": 1e-6,
                  "max_turns": 20, "max_tokens_per_turn": 1024, "max_context": 16384},
        "evaluate": {"max_turns": 20, "max_tokens_per_turn": 1024, "max_context": 16384},
    },
    "paper": {
        "collect": {}, "sft": {},
        "train": {"steps": 160, "chains_per_step": 16, "group_size": 8, "learning_rate": 1e-6,
                  "max_turns": 30, "max_tokens_per_turn": 1500, "max_context": 32768},
        "evaluate": {"max_turns": 30, "max_tokens_per_turn": 1500, "max_context": 32768},
    },
}
