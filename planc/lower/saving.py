"""The ops that write what a run has trained: averages, checkpoints, exports and their pushes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, assert_never

from planc.graph import ops
from planc.inventory.routers import routers
from planc.plan.balance import bias_update
from planc.plan.bind import BoundPlan
from planc.plan.checkpoint import (
    AdapterExport,
    AsyncSave,
    CheckpointSpec,
    ExportedWeights,
    FrozenBase,
    HfExport,
    SyncSave,
    WhenBusy,
)
from planc.plan.spec import Plan, Weights
from planc.vocab import MeshDim


def build_averages(plan: Plan) -> Iterator[ops.BuildAverages]:
    """One op, if the plan keeps averages."""
    if plan.train.ema_decay is not None:
        yield ops.BuildAverages(span=plan.span("train.ema_decay"))


def update_averages(plan: Plan) -> Iterator[ops.UpdateAverages]:
    """One op, if the plan keeps averages."""
    if plan.train.ema_decay is not None:
        yield ops.UpdateAverages(ema_decay=plan.train.ema_decay, span=plan.span("train.ema_decay"))


def _exports_of(
    checkpoint: CheckpointSpec, weights: ExportedWeights
) -> Mapping[str, HfExport | AdapterExport]:
    """The exports of trained weights, or those of averages."""
    return {label: export for label, export in checkpoint.export.items() if export.weights is weights}


def _apply_averages(plan: Plan, checkpoint: CheckpointSpec) -> Iterator[ops.ApplyAverages]:
    """One op, before the exports of averages."""
    if exports := tuple(_exports_of(checkpoint, ExportedWeights.EMA)):
        span = plan.span(f"checkpoint.export.{exports[0]}.weights")
        yield ops.ApplyAverages(when="end", exports=exports, span=span)


def save_checkpoint(plan: Plan) -> Iterator[ops.SaveCheckpoint]:
    """One op, if the plan saves."""
    if (checkpoint := plan.checkpoint) is None or not _saves(checkpoint):
        return
    yield ops.SaveCheckpoint(
        every_steps=checkpoint.save_steps,
        every_seconds=checkpoint.save_seconds,
        at_end=checkpoint.save_last,
        keep_last=checkpoint.keep_last,
        mode="async" if isinstance(checkpoint.mode, AsyncSave) else "sync",
        when_busy=_when_busy(checkpoint.mode),
        span=plan.span("checkpoint"),
    )


def name_base(bound: BoundPlan) -> Iterator[ops.NameBase]:
    """One op, if files hold the parameters that the plan freezes, and checkpoints may leave them out."""
    plan = bound.plan
    if (checkpoint := plan.checkpoint) is None or checkpoint.base is FrozenBase.STORED:
        return
    freezes = plan.freeze is not None or plan.adapter is not None
    saves = _saves(checkpoint) or checkpoint.resumes
    if freezes and saves and bound.frozen and plan.model.weights is Weights.PRETRAINED:
        moved = {router.bias for router in routers(bound.inventory)} if bias_update(plan) is not None else ()
        # The files may lack a new head.
        lacking = {*moved, *bound.inventory.new_head}
        kept = tuple(name for name in bound.frozen if name not in lacking)
        yield ops.NameBase(path=plan.model.hf, parameters=kept, span=plan.span("checkpoint.base"))


def resume(plan: Plan) -> Iterator[ops.ResumeCheckpoint | ops.BranchRun]:
    """The ops that give a run the training state to start from, if it has one."""
    if (checkpoint := plan.checkpoint) is None or not checkpoint.resumes:
        return
    span = plan.span("checkpoint.resume")
    yield ops.ResumeCheckpoint(policy="latest", span=span)
    if checkpoint.branches_from is not None:
        yield ops.BranchRun(path=checkpoint.branches_from, span=span)


def settle_save(plan: Plan) -> Iterator[ops.SettleSave]:
    """One op, if a save may run while training continues."""
    checkpoint = plan.checkpoint
    if checkpoint is not None and _saves(checkpoint) and isinstance(checkpoint.mode, AsyncSave):
        yield ops.SettleSave(over=tuple(MeshDim), span=plan.span("checkpoint.mode"))


def _saves(checkpoint: CheckpointSpec) -> bool:
    return checkpoint.save_every is not None or checkpoint.save_last


def _when_busy(mode: SyncSave | AsyncSave) -> Literal["wait", "skip"] | None:
    if isinstance(mode, SyncSave):
        return None
    match mode.when_busy:
        case WhenBusy.WAIT:
            return "wait"
        case WhenBusy.SKIP:
            return "skip"
        case _:
            assert_never(mode.when_busy)


def export_weights(
    bound: BoundPlan, checkpoint: CheckpointSpec, *, over: tuple[MeshDim, ...]
) -> Iterator[ops.ExportHf | ops.ExportAdapter | ops.ApplyAverages | ops.PushExport]:
    """Exports of the trained weights, then those of averages, then the pushes of all."""
    yield from _exports(bound, checkpoint, ExportedWeights.TRAINED, over=over)
    yield from _apply_averages(bound.plan, checkpoint)
    yield from _exports(bound, checkpoint, ExportedWeights.EMA, over=over)
    yield from _pushes(bound.plan, checkpoint)


def _exports(
    bound: BoundPlan, checkpoint: CheckpointSpec, weights: ExportedWeights, *, over: tuple[MeshDim, ...]
) -> Iterator[ops.ExportHf | ops.ExportAdapter]:
    path = bound.plan.model.hf
    for label, export in _exports_of(checkpoint, weights).items():
        span = bound.plan.span(f"checkpoint.export.{label}")
        match export:
            case HfExport():
                dtype = export.dtype or bound.plan.model.dtype
                yield ops.ExportHf(when="end", dtype=dtype, path=path, over=over, span=span)
            case AdapterExport():
                yield ops.ExportAdapter(when="end", path=path, over=over, span=span)


def _pushes(plan: Plan, checkpoint: CheckpointSpec) -> Iterator[ops.PushExport]:
    """The last ops of a run: only rank 0 pushes, and the other ranks end."""
    for label, export in checkpoint.export.items():
        if (push := export.push) is not None:
            yield ops.PushExport(
                when="end",
                export="hf" if isinstance(export, HfExport) else "adapter",
                repository=push.repository,
                private=push.private,
                revision=push.revision,
                span=plan.span(f"checkpoint.export.{label}.push"),
            )
