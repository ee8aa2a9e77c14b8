"""Stages that the plan's rules make more unequal than they need to be."""

from __future__ import annotations

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.stages_out_of_order import CODE as OUT_OF_ORDER
from planc.checks.pipeline.support import balanced_help, split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.plan.stages import balanced_stages, stage_costs, stages
from planc.vocab import MeshDim

CODE = Code(
    "P328", "uneven-stages", "a stage computes much more than balanced stages would", Severity.WARNING
)

_LIMIT = 1.1
"""Stages may cost this much more than balanced ones."""


@reports(CODE, over=MeshDim.PP, unless=(WITHOUT_STAGES, OUT_OF_ORDER))
def check(subject: Subject) -> Findings:
    """One warning at `pipeline` if its rules cost a tenth more than balanced stages."""
    pipeline, bound = split_pipeline(subject), subject.bound
    if pipeline is None or not pipeline.rules:
        return
    costs = stage_costs(bound, stages(bound, pipeline))
    least = max(stage_costs(bound, balanced_stages(bound, pipeline)))
    if max(costs) > _LIMIT * least:
        yield CODE.at(
            subject.plan.span("pipeline"),
            f"stage {costs.index(max(costs))} computes {max(costs) / least:.2f} times as much "
            "as the largest of balanced stages",
            notes=("every micro-batch waits for the slowest stage",),
            help=balanced_help(subject, pipeline),
        )
