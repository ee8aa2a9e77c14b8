"""Executes a graph. Sees graph, styles, vocab, source and diagnostics, never the front end."""
