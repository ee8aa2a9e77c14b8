"""Whether two plans sum the same numbers in the same order, which makes their losses bitwise equal."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diagnostics import Diagnostic
from planc.diff.codes import REDUCTION_ORDER
from planc.diff.difference import Action, Change, Group
from planc.diff.fact import Fact, of_op
from planc.diff.facts import FSDP_DIMS, LAYOUT_FACTS, REDUCE_DTYPE, REDUCE_EVERY
from planc.diff.side import Side, finding_of
from planc.graph.ops import (
    Accumulate,
    AttachAttention,
    CompileModules,
    ComputeLoss,
    FullyShard,
    OpenData,
    ShardTensorParallel,
)


def compare_reduction_order(old: Side, new: Side) -> Iterator[Change]:
    """One change with its causes and a finding of P804."""
    note = reduction_note(old, new)
    if note is None:
        yield Change(Group.NUMERICS, Action.KEEP, "reduction order")
        return
    text, finding = note.primary.text, finding_of(note, breaks=False)
    yield Change(Group.NUMERICS, Action.CHANGE, "reduction order", note=text, findings=(finding,))


def reduction_note(old: Side, new: Side) -> Diagnostic | None:
    """P804 at the first setting of the new plan that changes the order; None if all sums are the same."""
    causes = tuple(_causes(old, new))
    if not causes:
        return None
    text = f"not bitwise comparable: {', '.join(fact.name for fact in causes)}"
    return REDUCTION_ORDER.at(new.span(causes[0].path), text)


def _causes(old: Side, new: Side) -> Iterator[Fact]:
    """Causes, mesh dims first: facts that change together with a mesh dim are not causes of their own."""
    mesh = [fact for fact in _MESH if fact.read(old) != fact.read(new)]
    yield from mesh
    for fact in _SUMS if mesh else (FSDP_DIMS, *_SUMS):
        before, after = fact.read(old), fact.read(new)
        if before != after and not (mesh and (before is None or after is None)):
            yield fact


def _divided_modules(side: Side) -> object:
    """The part of a layer that each rank of tp computes, and how the parts are combined."""
    divided = {(fqn, op.use, op.parameters) for op in side.ops(ShardTensorParallel) for fqn in op.modules}
    return divided or None


def _loss(side: Side) -> object:
    """Whether each rank of tp sums over a shard of the vocabulary."""
    found = side.op(ComputeLoss)
    return found.vocab_over or None if found else None


def _loss_chunks(side: Side) -> str | None:
    """None for a loss of all tokens at once."""
    found = side.op(ComputeLoss)
    if found is None or (found.chunks == 1 and found.head is None and not found.logits):
        return None
    steps = "".join(f", {step}" for step in found.logits)
    return f"{found.chunks} of {found.head}{steps}"


def _units(side: Side) -> object:
    """An element's place in the reduced buffer decides the order in which ranks add it."""
    return {group for op in side.ops(FullyShard) for group in op.groups} or None


def _attention(side: Side) -> object:
    """How softmax sums are merged over the shards of a sequence."""
    found = side.op(AttachAttention)
    return (found.kind, found.balance) if found and found.over else None


def _compiled(side: Side) -> object:
    """Kernels fused by inductor sum in another order than torch's own, which the other backends run."""
    modules = {(fqn, op.mode) for op in side.ops(CompileModules) if op.mode for fqn in op.modules}
    return modules or None


_MESH = tuple(fact for fact in LAYOUT_FACTS if fact.name.startswith("mesh."))

_SUMS = (
    Fact(Group.NUMERICS, "tensor_parallel", "tensor_parallel", _divided_modules),
    Fact(Group.NUMERICS, "loss over tp", "tensor_parallel", _loss),
    Fact(Group.NUMERICS, "loss chunks", "train.loss_chunks", _loss_chunks),
    Fact(Group.NUMERICS, "FSDP units", "fsdp", _units),
    REDUCE_DTYPE,
    REDUCE_EVERY,
    Fact(Group.NUMERICS, "context_parallel", "context_parallel", _attention),
    Fact(Group.NUMERICS, "compile", "compile", _compiled),
    Fact(Group.NUMERICS, "data.micro_batch", "data.micro_batch", of_op(OpenData, "micro_batch")),
    Fact(Group.NUMERICS, "gradient_accumulation", "train.tokens_per_step", of_op(Accumulate, "times")),
)
"""The facts that determine sums: within a rank's kernels, over ranks, over micro steps."""
