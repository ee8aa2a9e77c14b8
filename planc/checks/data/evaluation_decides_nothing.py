"""Settings of an evaluation by which nothing can be decided."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.plan.data import EvalSpec
from planc.plan.spec import Plan
from planc.tables import plural

CODE = Code("P755", "evaluation-decides-nothing", "setting of `eval` without effect", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning for each setting that no run of the plan would act on."""
    plan = subject.plan
    for name, block in plan.data.eval.items():
        path = f"data.eval.{name}"
        if block.min_delta and block.patience is None:
            yield CODE.at(
                plan.span(f"{path}.min_delta"),
                "no `patience` that it applies to",
                help="add `patience = 3`, or leave out `min_delta`",
            )
        steps = plan.train.steps
        if block.patience is not None and steps is not None and (block.patience + 1) * block.every > steps:
            yield CODE.at(
                plan.span(f"{path}.patience"),
                f"{plural(block.patience, 'evaluation')} after the first, one every {block.every} steps",
                secondary=(Label(plan.span("train.steps"), f"{plural(steps, 'step')} of training"),),
                notes=("the first evaluation sets the loss to improve on; the run would always end first",),
                help="lower `patience` or `every`",
            )
        if block.keep_best:
            yield from _kept(plan, path, block)


def _kept(plan: Plan, path: str, block: EvalSpec) -> Findings:
    """A checkpoint has a loss if its step is evaluated."""
    saving, span = plan.checkpoint, plan.span(f"{path}.keep_best")
    if saving is None or saving.save_every is None:
        yield CODE.at(
            span,
            "the plan saves no checkpoint before the end",
            help=f"set `save_every = {plural(block.every, 'step')}` in `checkpoint`",
        )
    elif saving.save_steps is None or saving.save_steps % block.every:
        yield CODE.at(
            span,
            f"evaluated every {block.every} steps, saved every {saving.save_every}",
            secondary=(Label(plan.span("checkpoint.save_every"), "not a multiple of `every`"),),
            notes=("a checkpoint of a step without evaluation has no loss, and is never among the best",),
            help="set `save_every` to a multiple of `every`, in steps",
        )
