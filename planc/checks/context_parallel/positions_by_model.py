"""Models that number the tokens they get, if these are not a whole document."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P611", "positions-by-model", "the model ignores `position_ids`")


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for context parallelism, one for isolated documents, where the model counts tokens itself.

    None for attention in code of the model's own, which other rules refuse for both.
    """
    plan, inventory = subject.plan, subject.inventory
    if not inventory.positions.counted_by_model or inventory.own_attentions:
        return
    text = f"`{inventory.architecture}` numbers the tokens it sees"
    if plan.context_parallel is not None and plan.mesh.cp > 1:
        yield CODE.at(
            plan.context_parallel.span,
            text,
            secondary=(Label(plan.span("mesh.cp"), f"cp = {plan.mesh.cp}"),),
            notes=("each rank would number its part of a sequence from 0",),
            help="set cp = 1 and remove this block",
        )
    if plan.data.packing.isolates:
        # A packing that is not written follows from the source.
        follows = "data.packing" not in plan.spans and "data.source" in plan.spans
        source = Label(plan.span("data.source"), f"its packing is `{plan.data.packing}`")
        yield CODE.at(
            plan.span("data.packing"),
            text,
            secondary=(source,) if follows else (),
            notes=("a document's positions would continue from the document before it",),
            help="write `packing = none` for one document per sequence, or `packing = attend` to let them "
            "attend to each other",
        )
