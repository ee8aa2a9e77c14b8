"""Exports that don't fit what is trained."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.adapters import is_of_adapter
from planc.plan.checkpoint import ExportedWeights, HfExport

CODE = Code("P772", "export-of-adapters", "this export does not fit what the plan trains")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each export that would leave out adapters, or that is of what the plan doesn't have."""
    plan = subject.plan
    for label, export in (plan.checkpoint.export if plan.checkpoint else {}).items():
        if export.weights is ExportedWeights.EMA and plan.train.ema_decay is None:
            yield CODE.at(
                plan.span(f"checkpoint.export.{label}.weights"),
                "the plan keeps no averages of weights",
                help="write `ema_decay = 0.999` in `train`, or remove `weights`",
            )
        span, is_merged = plan.span(f"checkpoint.export.{label}"), getattr(export, "merged", None)
        if plan.adapter is None and is_merged is None:
            yield CODE.at(span, "the plan has no adapters", help='write `export "hf" {}`')
        elif plan.adapter is None and is_merged:
            yield CODE.at(span, "the plan has no adapters to merge", help="remove `merged`")
        elif plan.adapter is not None and isinstance(export, HfExport) and not is_merged:
            yield CODE.at(
                span,
                "the weights alone, without what was trained",
                help='add `merged = true`, or write `export "adapter" {}`',
            )
        elif plan.adapter is not None and is_merged is None and _trains_others(subject):
            yield CODE.at(
                span,
                "the adapters alone, and the plan also trains weights of the model",
                help='write `export "hf" { merged = true }`',
            )


def _trains_others(subject: Subject) -> bool:
    parameters = subject.inventory.parameters()
    return any(
        fqn not in subject.bound.frozen and not is_of_adapter(module.fqn) for fqn, module, _ in parameters
    )
