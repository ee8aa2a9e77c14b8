"""Pipelines with fewer micro-batches than ranks."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.pipelining.simulate import simulate
from planc.plan.facts import gradient_accumulation, tokens_per_micro_step
from planc.plan.spec import PipelineSpec
from planc.plan.stages import num_stages, orders
from planc.tables import plural
from planc.vocab import MeshDim

CODE = Code(
    "P327",
    "few-micro-batches",
    "a step has fewer micro-batches than the pipeline has ranks",
    Severity.WARNING,
)


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One warning at `train.tokens_per_step`, with the share of a step that ranks wait."""
    plan, pp = subject.plan, subject.plan.mesh.pp
    times = gradient_accumulation(plan)
    if plan.pipeline is None or not 0 < times < pp:
        return
    idle = _idle_share(subject, plan.pipeline, times)
    yield CODE.at(
        plan.span("train.tokens_per_step"),
        f"with {plural(times, 'micro-batch', 'micro-batches')}, ranks wait {100 * idle:.0f} % of a step",
        secondary=(Label(plan.span("mesh.pp"), f"pp = {pp}"),),
        notes=("this assumes stages of equal time",),
        help=f"set `tokens_per_step` to {pp * tokens_per_micro_step(plan):_} or a multiple, or lower `pp`",
    )


def _idle_share(subject: Subject, pipeline: PipelineSpec, times: int) -> float:
    """The mean share of a step in which ranks wait, if a backward takes twice the time of a forward."""
    pp, number = subject.plan.mesh.pp, num_stages(subject.bound, pipeline)
    found = orders(pipeline, num_ranks=pp, num_micro_batches=times)
    step = simulate(found, num_stages=number, forward=[1] * number, backward=[2] * number)
    return sum(step.bubble) / pp
