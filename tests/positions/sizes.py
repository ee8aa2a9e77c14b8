"""Model types whose positions are not simply 0, 1, 2, ... as given."""

from __future__ import annotations

HALVES = ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus", "plbart")
"""Decoders of encoder-decoders, which number their tokens themselves."""
OFFSET = ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
"""Models whose first token is at the position behind that of padding, which is not counted."""
