"""Placements along a dimension that activations do not have."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.rule_groups import by_rule
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.styles import StyleUse
from planc.styles.edges import NUM_DIMS
from planc.vocab import MeshDim, Placement, Shard

CODE = Code("P483", "no-such-dim", "activations have no such dimension")


@reports(CODE, over=MeshDim.TP, block="tensor_parallel")
def check(subject: Subject) -> Findings:
    """One finding for each rule that shards activations along a dimension they don't have."""
    for span, assignments in by_rule(subject):
        beyond = next((shard for assignment in assignments for shard in _beyond(assignment.use)), None)
        if beyond is not None:
            names = quoted(subject.patterns([assignment.fqn for assignment in assignments])[:3])
            yield CODE.at(
                span,
                f"{beyond} for an input or output of {names}",
                notes=("activations are [batch, sequence, features]",),
                help="write `Shard(1)` for the sequence, or `Shard(-1)` for the features",
            )


def _beyond(use: StyleUse) -> Iterator[Placement]:
    for placement in (use.input, use.computes_on, use.output):
        if isinstance(placement, Shard) and not -NUM_DIMS <= placement.tensor_dim < NUM_DIMS:
            yield placement
