"""The consequences of a change in the model, the mesh or the data for existing checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.diff.difference import Action, Change, Group
from planc.diff.sample_order import SOURCES, data_state, has_same_sources
from planc.diff.side import Side
from planc.graph import ops
from planc.optimizers import OptimizerKind
from planc.tables import plural


def compare_checkpoints(old: Side, new: Side, *, facts: Sequence[Change]) -> Iterator[Change]:
    """Whether the new plan can resume from a checkpoint of the old one: tensors, then the data position."""
    if reason := misfit(old, new):
        yield Change(Group.CHECKPOINT, Action.REPLACE, "model, optimizer", note=f"refused: {reason}")
    elif _placement(old) == _placement(new):
        yield Change(Group.CHECKPOINT, Action.KEEP, "model, optimizer", note="load unchanged")
    else:
        yield Change(Group.CHECKPOINT, Action.KEEP, "model, optimizer", note="reshard on load")
    yield _data_loader(old, new, facts=facts)


def misfit(old: Side, new: Side) -> str:
    """Explain why a checkpoint of one model does not fit the other: names, then known shapes, then dtype."""
    before, after = _parameters(old), _parameters(new)
    if before.keys() != after.keys():
        num_other = len(before.keys() ^ after.keys())
        return f"{plural(num_other, 'parameter')} in one model only"
    num_other = sum(None not in (shape, after[fqn]) and shape != after[fqn] for fqn, shape in before.items())
    if num_other:
        return f"{plural(num_other, 'parameter')} with another shape"
    if old.model.dtype != new.model.dtype:
        return f"parameters are {old.model.dtype} in one and {new.model.dtype} in the other"
    types, others = (one.model.other_dtypes for one in (old, new))
    if num_other := sum(types.get(fqn) != others.get(fqn) for fqn in before):
        return f"{plural(num_other, 'parameter')} with another dtype"
    if (base := old.op(ops.NameBase)) and old.op(ops.LoadWeights) and not new.op(ops.LoadWeights):
        return f"frozen parameters are in {base.path}, and the plan starts from random weights"
    kept, wanted = (one.op(ops.BuildOptimizer) for one in (old, new))
    if kept and wanted and (apart := _kept_apart(kept, wanted)):
        return f"one optimizer keeps {_listed(apart[0])}, the other {_listed(apart[1])}"
    return ""


def _kept_apart(
    kept: ops.BuildOptimizer, wanted: ops.BuildOptimizer
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The tensors of two optimizers for the first parameter of which they keep different ones."""
    others = wanted.settings_by_parameter()
    both = ((kind, others[fqn]) for fqn, kind in kept.settings_by_parameter().items() if fqn in others)
    names = ((_names(mine), _names(other)) for mine, other in both)
    return next((pair for pair in names if pair[0] != pair[1]), None)


def _names(kind: OptimizerKind) -> tuple[str, ...]:
    """Return the names of what an optimizer keeps of a matrix."""
    return tuple(map(str, kind.kept(2)))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "nothing"


def _parameters(side: Side) -> dict[str, tuple[int, ...] | None]:
    """Every parameter with its shape; None if the model is not here."""
    found = side.layouts()
    if found is not None:
        return {fqn: parameter.shape for fqn, parameter in found.items()}
    trained = (fqn for op in side.ops(ops.BuildOptimizer) for group in op.groups for fqn in group.parameters)
    return dict.fromkeys((*trained, *side.graph.frozen))


def _placement(side: Side) -> object:
    """The values that decide which rank holds which shard of a tensor."""
    divided = {(fqn, op.parameters) for op in side.ops(ops.ShardTensorParallel) for fqn in op.modules}
    experts = [(op.modules, op.size, op.over) for op in side.ops(ops.ShardExperts)]
    return side.graph.mesh, divided, experts, {op.shard_over for op in side.ops(ops.FullyShard)}


def _data_loader(old: Side, new: Side, *, facts: Sequence[Change]) -> Change:
    changed = [fact.name for fact in facts if fact.name in data_state() and fact.action is not Action.KEEP]
    if {*changed} <= SOURCES and has_same_sources(old.graph, new.graph):
        # Other labels alone.
        changed = []
    if changed:
        note = f"refused: different {', '.join(changed)}"
        if changed == ["data.tokenizer"]:
            note = "refused, unless the tokenizer's content is the same"
        return Change(Group.CHECKPOINT, Action.REPLACE, "data loader", note=note)
    was, now = (side.graph.dp_size for side in (old, new))
    if was == now:
        return Change(Group.CHECKPOINT, Action.KEEP, "data loader", note=plural(was, "dp rank"))
    return Change(Group.CHECKPOINT, Action.REPLACE, "data loader", str(was), str(now), note="dp ranks")
