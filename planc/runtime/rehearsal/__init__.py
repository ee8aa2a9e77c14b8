"""Executes a graph with the torch handlers on fake tensors, in a fake world of the plan's own size."""
