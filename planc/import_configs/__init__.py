"""Configs of other tools as plans: rows of keys per tool, one lowering, a note for what has no row."""
