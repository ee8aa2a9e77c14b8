"""Whether two plans sum the same numbers in the same order, which makes their losses bitwise equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.diagnostics import Diagnostic
from planc.diff.codes import REDUCTION_ORDER
from planc.diff.difference import Action, Change, Group
from planc.diff.lines import Fact, Line, lines
from planc.diff.readers import Reader
from planc.diff.side import Side, finding_of
from planc.graph import ops


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
    sums = [fact for line in lines() if line.meaning.is_in_sums for fact in _facts(line)]
    mesh = [fact for fact in sums if fact.path.startswith("mesh.") and fact.read(old) != fact.read(new)]
    yield from mesh
    for fact in sums:
        before, after = fact.read(old), fact.read(new)
        if before == after or fact in mesh or (mesh and (fact.name == "fsdp" or None in (before, after))):
            continue
        yield fact


def _facts(line: Line) -> tuple[Fact, ...]:
    """The line's facts, with the parts that sums depend on."""
    if read := _SUMS.get(line.label):
        return (Fact(Group.NUMERICS, line.label, line.meaning.key, read),)
    return line.facts


def _divided_modules(side: Side) -> object:
    """The part of a layer that each rank of tp computes, and how the parts are combined."""
    divided = {(fqn, op.use, op.parameters) for op in side.ops(ops.ShardTensorParallel) for fqn in op.modules}
    return divided or None


def _units(side: Side) -> object:
    """An element's place in the reduced buffer decides the order in which ranks add it."""
    return {group for op in side.ops(ops.FullyShard) for group in op.groups} or None


def _attention(side: Side) -> object:
    """Return how softmax sums are merged over the shards of a sequence."""
    found = side.op(ops.AttachAttention)
    return (found.kind, found.balance) if found and found.over else None


def _compiled(side: Side) -> object:
    """Kernels fused by inductor sum in another order than torch's own, which the other backends run."""
    modules = {(fqn, op.mode) for op in side.ops(ops.CompileModules) if op.mode for fqn in op.modules}
    return modules or None


_SUMS: Mapping[str, Reader] = {
    "tensor_parallel": _divided_modules,
    "FSDP units": _units,
    "context_parallel": _attention,
    "compile": _compiled,
}
"""The readers of the labels of which only a part determines the order of sums."""
