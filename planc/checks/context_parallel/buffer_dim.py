"""Rules that shard a sequence tensor along another dimension than the sequence."""

from __future__ import annotations

from planc.checks.patterns.pattern_unmatched import CODE as PATTERN_UNMATCHED
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.bind import SEQUENCE_DIM
from planc.vocab import MeshDim

CODE = Code("P603", "buffer-dim", "a sequence tensor is not sharded along the sequence")


@reports(CODE, over=MeshDim.CP, block="context_parallel", unless=(PATTERN_UNMATCHED,))
def check(subject: Subject) -> Findings:
    """One finding for each rule on the wrong dimension."""
    for name, (tensor_dim, span) in subject.bound.buffers.items():
        if tensor_dim != SEQUENCE_DIM:
            yield CODE.at(
                span,
                f"`{name}` is [batch, sequence]: dimension {tensor_dim} is not the sequence",
                help=f"write `Shard({SEQUENCE_DIM})`, or leave the rule out",
            )
