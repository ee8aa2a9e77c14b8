"""The ops that keep moving averages of weights, and export them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.graph.ops import ApplyAverages, BuildAverages, UpdateAverages
from planc.plan.checkpoint import AdapterExport, CheckpointSpec, ExportedWeights, HfExport
from planc.plan.spec import Plan


def build_averages(plan: Plan) -> Iterator[BuildAverages]:
    """One op, if the plan keeps averages."""
    if plan.train.ema_decay is not None:
        yield BuildAverages(span=plan.span("train.ema_decay"))


def update_averages(plan: Plan) -> Iterator[UpdateAverages]:
    """One op, if the plan keeps averages."""
    if plan.train.ema_decay is not None:
        yield UpdateAverages(ema_decay=plan.train.ema_decay, span=plan.span("train.ema_decay"))


def exports_of(
    checkpoint: CheckpointSpec, weights: ExportedWeights
) -> Mapping[str, HfExport | AdapterExport]:
    """The exports of trained weights, or those of averages."""
    return {label: export for label, export in checkpoint.export.items() if export.weights is weights}


def apply_averages(plan: Plan, checkpoint: CheckpointSpec) -> Iterator[ApplyAverages]:
    """One op, before the exports of averages."""
    if exports := tuple(exports_of(checkpoint, ExportedWeights.EMA)):
        span = plan.span(f"checkpoint.export.{exports[0]}.weights")
        yield ApplyAverages(when="end", exports=exports, span=span)
