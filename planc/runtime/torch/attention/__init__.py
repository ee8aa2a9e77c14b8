"""Causal self-attention for training, whole or context-parallel, registered with transformers by name."""
