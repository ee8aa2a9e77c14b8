"""Rules of `pipeline` for modules that are not layers."""

from __future__ import annotations

from planc.checks.pipeline.support import balanced_help, split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import exact_families, quoted
from planc.plan.stages import layers
from planc.source import Span
from planc.vocab import MeshDim

CODE = Code("P322", "stage-of-other-module", "only layers have a stage")


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One error for each rule that names other modules."""
    pipeline, inventory = split_pipeline(subject), subject.inventory
    if pipeline is None:
        return
    others: dict[Span, list[str]] = {}
    members = layers(inventory)
    for name, (_, span) in subject.bound.stage_of.items():
        if name not in members:
            others.setdefault(span, []).append(name)
    for span, names in others.items():
        families = exact_families(inventory, names)
        yield CODE.at(
            span,
            f"this rule names {quoted(families[:3])}{', ...' if len(families) > 3 else ''}",
            notes=("modules before the layers are in the first stage, modules after them in the last",),
            help=f"name members of `{inventory.blocks[0]}` only; or {balanced_help(subject, pipeline)}",
        )
