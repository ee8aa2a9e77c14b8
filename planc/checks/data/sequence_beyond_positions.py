"""Sequences longer than the model's positions."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic

CODE = Code("P704", "sequence-beyond-positions", "the sequence is longer than the model's positions")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `data.sequence_length` when it exceeds `max_position_embeddings`."""
    positions, length = subject.inventory.max_positions, subject.plan.data.sequence_length
    first = subject.inventory.positions.first
    if positions is not None and length > positions - first:
        start = f", and the model's first token is at {first}" if first else ""
        yield CODE.at(
            subject.plan.span("data.sequence_length"),
            f"{length} tokens exceed max_position_embeddings = {positions}{start}",
            help=f"set `sequence_length` to at most {positions - first}, "
            "or raise max_position_embeddings in config.json",
        )


RULE = Rule((CODE,), check)
