"""The language server: pure functions from a text, what a check found in it, and a position, to values."""
