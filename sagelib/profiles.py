"""Numbers that depend on the size of the machine, one dict per profile (plain data: setup reads it, too).

A profile lists what differs from the defaults of the classes in config.py; a notebook's parameter that is not None
overrides both. WORLDS says how each generated world is made; PROFILE_WORLD which one a profile uses.
"""

# plan: scenario draws per family in each data set (see sagelib/engine/generate.py)
WORLDS: dict[str, dict] = {
    "mini": {"seed": 7, "profile": "full",
             "plan": {"train": 2, "demos": 2, "dev": 1, "test_normal": 2, "test_challenge": 4}},
    "smoke": {"seed": 7, "profile": "smoke",
              "plan": {"families_per_app": 1, "train": 1, "demos": 1, "dev": 1, "test_normal": 1, "test_challenge": 1}},
}

PROFILE_WORLD: dict[str, str] = {"smoke": "smoke", "laptop": "mini", "gpu": "mini", "paper": "mini"}

PROFILES: dict[str, dict[str, dict]] = {
    "smoke": {
        "collect": {"scenarios": 12},
        "sft": {"vocabulary": 600, "width": 64, "layers": 2, "heads": 1, "pair_steps": 10, "base_steps": 10,
                "sft_steps": 10, "batch_size": 4},
        "train": {"steps": 2, "episodes_per_step": 8, "group_size": 2, "micro_batches": 1, "max_turns": 2,
                  "max_tokens_per_turn": 32, "save_steps": 1},
        "evaluate": {"scenarios": 2, "max_turns": 2, "max_tokens_per_turn": 32},
        "figures": {"publish": False},
        "rise_sft": {"per_family": 3, "vocabulary": 400, "width": 32, "layers": 1, "heads": 1, "pairs": 60, "pair_steps": 4,
                     "steps": 8, "batch_size": 4, "sequences": 2, "max_context": 1400, "trajectory_tokens": 900,
                     "reply_tokens": 48, "writer_tokens": 160, "document_tokens": 120},
        "rise_train": {"steps": 2, "episodes_per_step": 12, "copies": 2, "max_turns": 2, "reply_tokens": 16, "writer_tokens": 40,
                       "document_tokens": 24, "save_steps": 1},
        "rise_evaluate": {"families": 2, "max_turns": 2, "reply_tokens": 16, "writer_tokens": 40, "document_tokens": 24,
                          "attempts": 2, "lengths": [1, 2], "per_length": 2, "length_families": 2},
    },
    "laptop": {"collect": {}, "sft": {}, "train": {}, "evaluate": {}, "rise_sft": {}, "rise_train": {}, "rise_evaluate": {}},
    "gpu": {
        "collect": {}, "sft": {}, "rise_sft": {}, "rise_train": {}, "rise_evaluate": {},
        "train": {"steps": 100, "episodes_per_step": 128, "micro_batches": 32, "learning_rate": 1e-6, "schedule": "constant",
                  "adam_epsilon": 1e-8, "train_embeddings": True, "max_turns": 40,
                  "max_tokens_per_turn": 1500, "max_context": 28048},
        "evaluate": {"max_turns": 40, "max_tokens_per_turn": 1500, "max_context": 28048},
    },
    "paper": {
        "collect": {}, "sft": {}, "rise_sft": {}, "rise_train": {}, "rise_evaluate": {},
        "train": {"steps": 100, "episodes_per_step": 384, "micro_batches": 96, "learning_rate": 1e-6, "schedule": "constant",
                  "adam_epsilon": 1e-8, "train_embeddings": True, "max_turns": 40,
                  "max_tokens_per_turn": 1500, "max_context": 28048},
        "evaluate": {"max_turns": 40, "max_tokens_per_turn": 1500, "max_context": 28048},
    },
}
