"""Versions of plans: git revisions, run directories, and checkpoints."""
