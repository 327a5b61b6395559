"""Agents that write and reuse skills: rollout, reward and training code behind the notebooks."""

__version__ = "0.1.0"
