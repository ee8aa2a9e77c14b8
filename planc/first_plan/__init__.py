"""A first plan for a model: its settings from published practice, its mesh from `planc.tune`."""
