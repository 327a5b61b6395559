"""Numbers that depend on the size of the machine, one dict per profile (plain data: setup reads it, too).

A profile lists what differs from the defaults of the classes in config.py; a notebook's parameter that is not None
overrides both. WORLDS says how each generated world is made; PROFILE_WORLD which one a profile uses.
"""

# plan: scenario draws per family in each data set (see sagelib/engine/generate.py)
WORLDS: dict[str, dict] = {
    "mini": {"seed": 7, "profile": "full",
             "plan": {"train": 1, "demos": 3, "dev": 1, "test_normal": 1, "test_challenge": 4}},
    "smoke": {"seed": 7, "profile": "smoke",
              "plan": {"families_per_app": 1, "train": 1, "demos": 1, "dev": 1, "test_normal": 1, "test_challenge": 1}},
}

PROFILE_WORLD: dict[str, str] = {"smoke": "smoke", "laptop": "mini", "smollm": "smoke", "gpu": "mini", "paper": "mini"}

# The shop of SkillRise's notebooks.
PROFILE_SHOP: dict[str, str] = {"smoke": "shop-smoke", "laptop": "shop-mini"}

# The notebook that makes the policies from which training starts: a small model from nothing, or a pre-trained LLM.
START: dict[str, str] = {"smoke": "02_sft", "laptop": "02_sft", "smollm": "02_sft_llm", "gpu": "02_sft_llm",
                         "paper": "02_sft_llm"}

# The recipe of SAGE on a pre-trained LLM; sagelib/plan.py says for each setting whether it is the paper's or ours.
SAGE = {
    "credit": "skill_integrated", "skills": True, "chain_length": 2, "chains": "scenario", "init": "sft", "group_size": 8,
    "episodes_per_step": 384, "steps": 100, "learning_rate": 1e-6, "schedule": "constant", "clip_eps": 0.2, "grad_clip": 1.0,
    "weight_decay": 0.0, "adam_epsilon": 1e-8, "train_embeddings": True, "temperature": 1.0, "max_turns": 40,
    "max_tokens_per_turn": 1500, "max_context": 28048, "observation_chars": 20000, "micro_batches": 16, "save_steps": 10,
    "lora_rank": 0, "lora_alpha": 32, "bf16": True, "agreement_rows": 4, "detector": "strict", "step_seconds": 20.0,
    "parallel": 8, "importance_sampling": "none", "importance_cap": 3.0,
}

PROFILES: dict[str, dict[str, dict]] = {
    "smoke": {
        "collect": {"scenarios": 12},
        "sft": {"vocabulary": 600, "width": 64, "layers": 2, "heads": 1, "pair_steps": 10, "base_steps": 10,
                "sft_steps": 10, "batch_size": 4},
        "train": {"steps": 2, "episodes_per_step": 8, "group_size": 2, "micro_batches": 1, "max_turns": 2,
                  "max_tokens_per_turn": 32, "save_steps": 1},
        "evaluate": {"scenarios": 2, "max_turns": 2, "max_tokens_per_turn": 32},
        "self_distill": {"scenarios": 2, "plays": 2, "epochs": 1, "batch_size": 4},
        "figures": {"publish": False},
        "rise_sft": {"per_family": 3, "vocabulary": 400, "width": 32, "layers": 1, "heads": 1, "pairs": 60, "pair_steps": 4,
                     "steps": 8, "batch_size": 4, "sequences": 2, "max_context": 1400, "trajectory_tokens": 900,
                     "reply_tokens": 48, "writer_tokens": 160, "document_tokens": 120},
        "rise_train": {"steps": 2, "episodes_per_step": 12, "copies": 2, "max_turns": 2, "reply_tokens": 16, "writer_tokens": 40,
                       "document_tokens": 24, "save_steps": 1},
        "rise_evaluate": {"families": 2, "max_turns": 2, "reply_tokens": 16, "writer_tokens": 40, "document_tokens": 24,
                          "attempts": 2, "lengths": [1, 2], "per_length": 2, "length_families": 2},
    },
    # A policy of 3 million parameters spreads much probability over tokens that make no sense: at temperature 1 it solves half of
    # what it solves at 0.7. Half the group and twice the scenarios a step, and a small rate: LOG.md, 2026-11-30, fourth session.
    "laptop": {
        "collect": {}, "sft": {},
        "train": {"group_size": 4, "temperature": 0.7, "learning_rate": 5e-5},
        "evaluate": {"temperature": 0.7, "plays": {"dev": 4, "test_normal": 4}},
        "self_distill": {"temperature": 0.7},
        "rise_sft": {"temperature": 0.7}, "rise_train": {"temperature": 0.7}, "rise_evaluate": {"temperature": 0.7},
    },
    "smollm": {
        "collect": {"scenarios": 12},
        "sft_llm": {"demo_chars": 250, "sft_steps": 40, "batch_size": 2, "max_length": 2048, "bf16": False},
        "train": {"steps": 3, "episodes_per_step": 8, "group_size": 4, "learning_rate": 5e-5, "adam_epsilon": 1e-8,
                  "max_turns": 4, "max_tokens_per_turn": 160, "max_context": 2560, "observation_chars": 250,
                  "micro_batches": 1, "save_steps": 1, "lora_rank": 16, "bf16": False, "agreement_rows": 2},
        "evaluate": {"scenarios": 1, "max_turns": 4, "max_tokens_per_turn": 160, "max_context": 2560, "observation_chars": 250,
                     "temperature": 0.1},
        "figures": {"publish": False},
    },
    "gpu": {
        "collect": {},
        "sft_llm": {"model": "Qwen/Qwen2.5-3B-Instruct", "lora_rank": 32, "lora_alpha": 64},
        "train": SAGE | {"episodes_per_step": 64, "micro_batches": 32, "learning_rate": 1e-5, "lora_rank": 32, "lora_alpha": 64,
                         "train_embeddings": False, "max_turns": 20, "max_tokens_per_turn": 512, "max_context": 8192,
                         "observation_chars": 4000},
        "evaluate": {"max_turns": 20, "max_tokens_per_turn": 512, "max_context": 8192, "observation_chars": 4000, "parallel": 8,
                     "temperature": 0.1},   # as LOOP, the paper's predecessor, evaluates
        "figures": {"publish": False},
    },
    "paper": {
        "collect": {},
        "sft_llm": {"model": "Qwen/Qwen2.5-32B-Instruct", "lora_rank": 0, "max_length": 28048, "learning_rate": 1e-5},
        "train": SAGE,
        "evaluate": {"max_turns": 40, "max_tokens_per_turn": 1500, "max_context": 28048, "observation_chars": 20000,
                     "parallel": 8, "temperature": 0.1},
        "figures": {"publish": False},
    },
}
