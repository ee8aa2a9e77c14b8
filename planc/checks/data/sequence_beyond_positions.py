"""Sequences longer than the model's positions."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.positions import reached_positions, rope_of

CODE = Code("P704", "sequence-beyond-positions", "the sequence is longer than the model's positions")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `data.sequence_length` when it exceeds the positions that the model reaches."""
    plan, inventory = subject.plan, subject.inventory
    positions, length = reached_positions(plan, inventory), plan.data.sequence_length
    first = inventory.positions.first
    if positions is None or length <= positions - first:
        return
    rope, stated = rope_of(plan, inventory), inventory.max_positions
    scaled = f" of {rope.kind} scaling by {rope.factor:g}" if rope is not None and rope.factor > 1 else ""
    limit = f"{positions} positions{scaled}" if scaled else f"max_position_embeddings = {stated}"
    start = f", and the model's first token is at {first}" if first else ""
    other = "raise max_position_embeddings in config.json"
    if rope is not None and not rope.by_layer:
        times = -(-length // (rope.original or stated or positions))
        other = f"scale rotary embeddings: `model {{ rope = yarn(factor = {times}) }}`"
    yield CODE.at(
        plan.span("data.sequence_length"),
        f"{length} tokens exceed {limit}{start}",
        help=f"set `sequence_length` to at most {positions - first}, or {other}",
    )
