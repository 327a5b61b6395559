"""One file per app: its sources, filters, actions, questions and families (see scenario.py)."""
