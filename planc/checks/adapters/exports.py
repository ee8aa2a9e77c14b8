"""Exports that don't fit what is trained."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.adapters import not_saved_apart, trained_apart
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
        elif plan.adapter is not None and is_merged is None and (reason := _left_out(subject)):
            yield CODE.at(span, reason, help='write `export "hf" { merged = true }`')


def _left_out(subject: Subject) -> str | None:
    """A parameter that peft's format has no place for, and why."""
    inventory, frozen = subject.bound.inventory, subject.bound.frozen
    for name in trained_apart(inventory, frozen):
        if reason := not_saved_apart(inventory, name):
            return f"`{name}` is trained, and peft can't save its module: it {reason}"
    for name in inventory.new_head:
        if name in frozen:
            return f"`{name}` is drawn and frozen, and no file would have it"
    return None
