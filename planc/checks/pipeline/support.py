"""The pipeline of a model that has stages, and rules that balance them: shared by rules on stages."""

from __future__ import annotations

from planc.checks.support.rule import Subject
from planc.layouts.families import exact_families
from planc.plan.spec import PipelineSpec
from planc.plan.stages import balanced_stages, layers, num_stages

_MAX_SHOWN = 4


def split_pipeline(subject: Subject) -> PipelineSpec | None:
    """The plan's pipeline, if the model has a layer for each stage: other rules report that it has not."""
    pipeline = subject.plan.pipeline
    if pipeline is None or len(layers(subject.inventory)) < num_stages(subject.bound, pipeline):
        return None
    return pipeline


def balanced_help(subject: Subject, pipeline: PipelineSpec) -> str:
    """The edit that gives every layer a stage."""
    members = frozenset(layers(subject.inventory))
    rules = [
        f'"{pattern}" -> stage({stage})'
        for stage, modules in enumerate(balanced_stages(subject.bound, pipeline))
        for pattern in exact_families(subject.inventory, [name for name in modules if name in members])
    ]
    written = f", or write {', '.join(f'`{rule}`' for rule in rules)}" if len(rules) <= _MAX_SHOWN else ""
    return f"remove the rules of `pipeline`, which balances the layers{written}"
