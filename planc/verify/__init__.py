"""Verify that a plan computes the same as one device: its own graph, on a tiny model of the same kind."""
