"""Passes from graph to graph, one per file."""
