"""The ops that export weights after the last step, and push the exports."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import ApplyAverages, ExportAdapter, ExportHf, PushExport
from planc.lower.averages import apply_averages, exports_of
from planc.plan.bind import BoundPlan
from planc.plan.checkpoint import AdapterExport, CheckpointSpec, ExportedWeights, HfExport
from planc.plan.spec import Plan
from planc.vocab import MeshDim


def export_weights(
    bound: BoundPlan, checkpoint: CheckpointSpec, *, over: tuple[MeshDim, ...]
) -> Iterator[ExportHf | ExportAdapter | ApplyAverages | PushExport]:
    """Exports of the trained weights, then those of averages, then the pushes of all."""
    yield from _exports(bound, checkpoint, ExportedWeights.TRAINED, over=over)
    yield from apply_averages(bound.plan, checkpoint)
    yield from _exports(bound, checkpoint, ExportedWeights.EMA, over=over)
    yield from _pushes(bound.plan, checkpoint)


def _exports(
    bound: BoundPlan, checkpoint: CheckpointSpec, weights: ExportedWeights, *, over: tuple[MeshDim, ...]
) -> Iterator[ExportHf | ExportAdapter]:
    path = bound.plan.model.hf
    for label, export in exports_of(checkpoint, weights).items():
        span = bound.plan.span(f"checkpoint.export.{label}")
        match export:
            case HfExport():
                dtype = export.dtype or bound.plan.model.dtype
                yield ExportHf(when="end", dtype=dtype, path=path, over=over, span=span)
            case AdapterExport():
                yield ExportAdapter(when="end", path=path, over=over, span=span)


def _pushes(plan: Plan, checkpoint: CheckpointSpec) -> Iterator[PushExport]:
    """The last ops of a run: only rank 0 pushes, and the other ranks end."""
    for label, export in checkpoint.export.items():
        if (push := export.push) is not None:
            yield PushExport(
                when="end",
                export="hf" if isinstance(export, HfExport) else "adapter",
                repository=push.repository,
                private=push.private,
                revision=push.revision,
                span=plan.span(f"checkpoint.export.{label}.push"),
            )
