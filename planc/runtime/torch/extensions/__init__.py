"""A plan's own code in a run: each kind's trials, and what the run then calls."""
