"""Batches, forward and backward, optimizer, guards, recomputation, compilation, evaluation."""
