"""Agents that write and reuse skills: rollout, reward and training code behind the notebooks."""

import warnings

__version__ = "0.1.0"

# tqdm, which transformers imports, warns in every kernel without ipywidgets; nothing here draws its bars
warnings.filterwarnings("ignore", message="IProgress not found")
