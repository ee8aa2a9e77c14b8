"""Rules of `pipeline` that put a layer before the stage of an earlier layer."""

from __future__ import annotations

from itertools import pairwise

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.support import balanced_help, split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.stages import layers
from planc.vocab import MeshDim

CODE = Code("P324", "stages-out-of-order", "stages must follow the order of the layers")


@reports(CODE, over=MeshDim.PP, unless=(WITHOUT_STAGES,))
def check(subject: Subject) -> Findings:
    """One error at the rule of the first layer that goes back."""
    pipeline, stage_of = split_pipeline(subject), subject.bound.stage_of
    if pipeline is None or not pipeline.rules:
        return
    for before, after in pairwise(layers(subject.inventory)):
        (earlier, earlier_span), (later, span) = stage_of[before], stage_of[after]
        if later < earlier:
            yield CODE.at(
                span,
                f"`{after}` is in stage {later}",
                secondary=(Label(earlier_span, f"`{before}`, the layer before it, is in stage {earlier}"),),
                help=balanced_help(subject, pipeline),
            )
            return
