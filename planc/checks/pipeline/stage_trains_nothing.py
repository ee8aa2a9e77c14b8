"""Stages of a pipeline that have no parameter to train."""

from __future__ import annotations

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.stages_out_of_order import CODE as OUT_OF_ORDER
from planc.checks.pipeline.support import split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.stages import stages
from planc.vocab import MeshDim, outwards

CODE = Code("P330", "stage-trains-nothing", "a pipeline stage has no parameter to train")


@reports(CODE, over=MeshDim.PP, unless=(WITHOUT_STAGES, OUT_OF_ORDER))
def check(subject: Subject) -> Findings:
    """One finding for the first stage whose parameters are all frozen.

    Its rank would have nothing to optimize, and the first stage no backward to run.
    """
    pipeline, frozen = split_pipeline(subject), subject.bound.frozen
    if pipeline is None or not frozen:
        return
    names = [fqn for fqn, _, _ in subject.inventory.parameters()]
    for number, modules in enumerate(stages(subject.bound, pipeline)):
        own = [fqn for fqn in names if not {*modules}.isdisjoint(outwards(fqn))]
        if own and all(fqn in frozen for fqn in own):
            yield CODE.at(
                frozen[own[0]],
                f"freezes parameters of stage {number}, of which all are frozen",
                secondary=(Label(pipeline.span, f"`{own[0]}` is in stage {number}"),),
                help="train a parameter of each stage, such as its norms, or use fewer stages",
            )
            return
