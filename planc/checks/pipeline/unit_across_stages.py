"""FSDP units and recomputed modules that hold modules of several stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.support import split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import quoted, runs
from planc.plan.stages import stage_by_name, stage_of, stages
from planc.vocab import MeshDim

CODE = Code("P326", "unit-across-stages", "this rule joins modules of several stages")


@reports(CODE, over=MeshDim.PP, unless=(WITHOUT_STAGES,))
def check(subject: Subject) -> Findings:
    """One error for each unit, and for each recomputed module."""
    pipeline, bound = split_pipeline(subject), subject.bound
    if pipeline is None:
        return
    by_name = stage_by_name(stages(bound, pipeline))
    joined = [(unit.fqns, unit.span, "gathered") for unit in bound.units]
    joined += [((name,), span, "recomputed") for name, span in bound.checkpointed.items()]
    for names, span, what in joined:
        across = sorted({stage for name in names for stage in _stages(name, by_name)})
        if len(across) > 1:
            yield CODE.at(
                span,
                f"{quoted(names[:3])} would be {what} together, in stages {runs(across)}",
                help="write one rule for each of these modules, or for modules inside them",
            )


def _stages(fqn: str, by_name: Mapping[str, int]) -> Iterable[int]:
    """The stages that a module is in, or whose modules it holds."""
    stage = stage_of(fqn, by_name)
    if stage is not None:
        return (stage,)
    return {stage for name, stage in by_name.items() if name.startswith(f"{fqn}.")}
