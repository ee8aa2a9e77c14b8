"""Executes a graph with PyTorch and transformers. Only here and in the rehearsal is torch imported."""
