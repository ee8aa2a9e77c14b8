"""Elastic runs that would restart from step 0."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.tables import plural

CODE = Code("P311", "elastic-without-resume", "an elastic run has no checkpoint to resume")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error if the plan never saves before its last step, or does not resume."""
    plan = subject.plan
    if plan.elastic is None:
        return
    checkpoint, steps = plan.checkpoint, plan.train.steps
    if checkpoint is None:
        text, path = "the plan has no `checkpoint` block", "elastic"
        help = (
            "write `checkpoint { save_every = 100 steps }`; a restart repeats the steps since the last save"
        )
    elif checkpoint.save_every is None or (
        steps is not None and checkpoint.save_steps is not None and checkpoint.save_steps >= steps
    ):
        text, path = "no step is saved before the last one", "checkpoint.save_every"
        help = f"set `save_every` to less than {plural(steps, 'step')}" if steps else "set `save_every`"
    elif not checkpoint.resumes:
        text, path = "a restarted run would begin at step 0", "checkpoint.resume"
        help = "write `resume = latest`"
    else:
        return
    yield CODE.at(plan.span(path), text, help=help)
