"""Sequence tensors that context parallelism must shard."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.patterns.pattern_unmatched import CODE as PATTERN_UNMATCHED
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.plan.bind import BUFFERS
from planc.vocab import MeshDim

CODE = Code("P603", "missing-buffers", "a sequence tensor is not sharded over cp")

_SEQUENCE_DIM = 1


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the block for tensors without a rule, and one for each rule on the wrong dimension."""
    spec = subject.plan.context_parallel
    if spec is None:
        return
    missing = [name for name in BUFFERS if name not in subject.bound.buffers]
    if missing:
        rules = quoted(f'"{name}" -> Shard({_SEQUENCE_DIM})' for name in missing)
        yield CODE.at(
            spec.span,
            f"no rule for {quoted(missing)}",
            notes=("each rank would pair its own tokens with another rank's values of this tensor",),
            help=f"add {rules}",
        )
    for name, (tensor_dim, span) in subject.bound.buffers.items():
        if tensor_dim != _SEQUENCE_DIM:
            text = f"`{name}` is [batch, sequence]: dimension {tensor_dim} is not the sequence"
            yield CODE.at(span, text, help=f"write `Shard({_SEQUENCE_DIM})`")


RULE = Rule((CODE,), check, over=MeshDim.CP, block="context_parallel", unless=(PATTERN_UNMATCHED,))
