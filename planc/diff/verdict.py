"""Whether a run resumes under a plan: one verdict for the run and for diff.

It only needs two execution graphs, so both decide in the same way. The run itself compares the bytes of
data and weights, which no graph has, when it has read them.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from functools import cache

from planc.diagnostics import has_errors
from planc.diff.difference import Action, Change, Group, State, Verdict
from planc.diff.lines import compare_line, compare_unlined, having
from planc.diff.reductions import compare_reduction_order
from planc.diff.sample_order import SOURCES, data_state, has_same_sources
from planc.diff.side import Side
from planc.diff.text import middle
from planc.graph import ops
from planc.graph.consequence import Consequence
from planc.graph.graph import Graph
from planc.graph.ops import BranchRun, ResumeCheckpoint
from planc.optimizers import OptimizerKind
from planc.record import record
from planc.tables import plural


def compare_checkpoints(old: Side, new: Side, *, facts: Sequence[Change]) -> Iterator[Change]:
    """Whether the new plan can resume from a checkpoint of the old one: tensors, then the data position."""
    if reason := _misfit(old, new):
        yield Change(Group.CHECKPOINT, Action.REPLACE, "model, optimizer", note=f"refused: {reason}")
    elif _placement(old) == _placement(new):
        yield Change(Group.CHECKPOINT, Action.KEEP, "model, optimizer", note="load unchanged")
    else:
        yield Change(Group.CHECKPOINT, Action.KEEP, "model, optimizer", note="reshard on load")
    yield _data_loader(old, new, facts=facts)


def _misfit(old: Side, new: Side) -> str:
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


@cache
def changes_to_allow() -> tuple[str, ...]:
    """The names of differences that change the training itself: only a person can decide to allow them."""
    return tuple(line.label for line in having(Consequence.NUMERICS))


@record
class ResumeChanges:
    """The differences, by consequence. `training` has (name to allow it by, change)."""

    training: tuple[tuple[str, Change], ...]
    sums: tuple[Change, ...]
    """Changes that only affect rounding."""
    harmless: tuple[Change, ...]


def resume_changes(old: Side, new: Side) -> ResumeChanges:
    """The effect of `new` on a run that `old` began. The checkpoint itself refuses other models and data."""
    training = tuple(
        (line.label, change)
        for line in having(Consequence.NUMERICS)
        for change in compare_line(line, old, new)
        if change.action is not Action.KEEP
    )
    order = any(change.action is not Action.KEEP for change in compare_reduction_order(old, new))
    beside = tuple(_told(_BESIDE, old, new))
    run = tuple(_told((Consequence.OUTPUT,), old, new))
    if not (training or beside or run):
        beside = tuple(compare_unlined(old, new))
    return ResumeChanges(training, beside if order else (), run if order else (*beside, *run))


_BESIDE = (Consequence.LAYOUT, Consequence.SAMPLES, Consequence.IDENTITY, Consequence.START)


def _told(consequences: tuple[Consequence, ...], old: Side, new: Side) -> Iterator[Change]:
    """The changed lines; a line with a change for each module is one change here."""
    for line in having(*consequences):
        changed = [one for one in compare_line(line, old, new) if one.action is not Action.KEEP]
        if len(changed) > 1 and line.comparer is not None:
            yield Change(changed[0].group, Action.CHANGE, line.label)
        else:
            yield from changed


TOKENIZER = "data.tokenizer"
"""The only part of the data whose name may change: its content is compared."""


def verdict(old: Graph, new: Graph, *, step: int = 0, allowed: Collection[str] = ()) -> Verdict:
    """Judge a run of `new` in a directory whose newest checkpoint, of `step`, the plan `old` saved.

    `allowed` are the names passed to `--allow-change`.
    """
    if (other := without_resuming(new)) is not None:
        return other
    sides = Side("saved", old), Side("now", new)
    if found := next(_refusals(*sides), None):
        reason, help = found
        return Verdict(State.REFUSED, reason, help)
    changes = resume_changes(*sides)
    refused = [(name, change) for name, change in changes.training if name not in allowed]
    if refused:
        names = tuple(dict.fromkeys(name for name, _ in refused))
        texts = "; ".join(f"{change.name} {middle(change)}" for _, change in refused)
        reason = f"this plan trains differently from the checkpoint's plan: {texts}"
        flags = " ".join(f"--allow-change {shlex.quote(name)}" for name in names)
        help = f"restore the old value, pass {flags}, or {_elsewhere(new)}"
        return Verdict(State.REFUSED, reason, help, names)
    if step >= new.num_steps:
        reason = f"the checkpoint is of step {step}, and the plan ends after step {new.num_steps}"
        return Verdict(State.NOTHING_TO_TRAIN, reason, notes=tuple(_notes(changes)))
    reason = f"after step {step}" if step else ""
    if any(change.name == TOKENIZER for change in _changed(Consequence.SAMPLES, *sides)):
        reason = f"{reason}, if the tokenizer's content is the same".removeprefix(", ")
    return Verdict(State.RESUMES, reason, notes=tuple(_notes(changes)))


def judge(saved: Graph, new: Side, *, step: int = 0) -> Verdict:
    """The verdict on a plan that may have errors, with which no run starts."""
    if has_errors(new.diagnostics):
        return Verdict(State.REFUSED, "the plan has errors")
    return verdict(saved, new.graph, step=step)


def between(old: Side, new: Side) -> Verdict | None:
    """Whether a run of `new` would resume from a checkpoint of the plan `old`.

    None if `old` saves no checkpoints, or if neither plan resumes.
    """
    neither = without_resuming(old.graph) and without_resuming(new.graph)
    return None if not old.graph.save or neither else judge(old.graph, new)


def without_resuming(graph: Graph) -> Verdict | None:
    """The verdict on a plan that never resumes; None for one that does."""
    if any(isinstance(op, ResumeCheckpoint) for op in graph.setup):
        return None
    why, help = "the plan does not resume", "choose another --run-dir, or set `checkpoint.resume = latest`"
    if not graph.save:
        why, help = "the plan has no `checkpoint` block", "choose another --run-dir"
    return Verdict(State.REFUSED, f"the run directory contains checkpoints, and {why}", help)


def _refusals(old: Side, new: Side) -> Iterator[tuple[str, str]]:
    """(reason, help) for refusals that `--allow-change` can't lift: the checkpoint itself does not fit."""
    if reason := _misfit(old, new):
        yield (
            f"the checkpoint does not fit this run: {reason}",
            "resume with the model, dtypes and optimizer that saved it",
        )
    if data := [change for change in _changed(Consequence.SAMPLES, old, new) if change.name != TOKENIZER]:
        texts = "; ".join(f"{change.name} {middle(change)}" for change in data)
        yield (
            f"the checkpoint was trained on other data: {texts}",
            f"restore the data settings, or {_elsewhere(new.graph)}",
        )
    for change in _changed(Consequence.IDENTITY, old, new):
        yield (
            f"the checkpoint was trained with another {change.name}: {middle(change)}",
            f"restore `{change.name}`, or {_elsewhere(new.graph)}",
        )


def _elsewhere(graph: Graph) -> str:
    """The help to train without the checkpoint: a run that branches would start from it anywhere."""
    branches = any(isinstance(op, BranchRun) for op in graph.setup)
    return f"start a new run with another --run-dir{' and `resume = latest`' if branches else ''}"


def _changed(consequence: Consequence, old: Side, new: Side) -> Iterator[Change]:
    changes = (change for line in having(consequence) for change in compare_line(line, old, new))
    return (change for change in changes if change.action is not Action.KEEP)


def _notes(found: ResumeChanges) -> Iterator[str]:
    yield from (f"{change.name} {middle(change)} (allowed)" for _, change in found.training)
    yield from (f"{change.name} {middle(change)} (changes only rounding)" for change in found.sums)
    yield from (f"{change.name} {middle(change)} (harmless)" for change in found.harmless)
