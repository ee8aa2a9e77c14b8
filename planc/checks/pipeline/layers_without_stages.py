"""Rules of `pipeline` that leave a layer without a stage, or a stage without a layer."""

from __future__ import annotations

from planc.checks.pipeline.support import balanced_help, split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import exact_families, quoted, runs
from planc.plan.stages import layers, num_stages
from planc.source import Span
from planc.tables import plural
from planc.vocab import MeshDim

CODE = Code("P323", "layers-without-stages", "every layer needs a stage, and every stage a layer")


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One error for each rule with an unknown stage, else one for the layers and stages that are left."""
    pipeline = split_pipeline(subject)
    if pipeline is None or not pipeline.rules:
        return
    number, stage_of = num_stages(subject.bound, pipeline), subject.bound.stage_of
    beyond: dict[Span, int] = {span: stage for stage, span in stage_of.values() if stage >= number}
    for span, stage in beyond.items():
        text = f"stage {stage} of {plural(number, 'stage')}, which count from 0"
        yield CODE.at(span, text, help=balanced_help(subject, pipeline))
    members = layers(subject.inventory)
    without = [name for name in members if name not in stage_of]
    empty = sorted({*range(number)} - {stage_of[name][0] for name in members if name in stage_of})
    if beyond or not (without or empty):
        return
    found = [f"no rule gives {quoted(exact_families(subject.inventory, without))} a stage"] if without else []
    found += [f"no layer is in {'stages' if len(empty) > 1 else 'stage'} {runs(empty)}"] if empty else []
    yield CODE.at(subject.plan.span("pipeline"), ", and ".join(found), help=balanced_help(subject, pipeline))
