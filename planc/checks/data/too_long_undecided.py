"""Treatment of long documents under packings that have none, or without one."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P750", "too-long-undecided", "`too_long` does not fit the packing")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `data.too_long`: unread if documents may be split, missing if they may not."""
    plan = subject.plan
    packing, too_long = plan.data.packing, plan.data.too_long
    if packing.divides == (too_long is None):
        return
    if too_long is None:
        text = f"`packing = {packing}` can't hold a document that is longer than a sequence"
        help = "write `too_long = truncate` or `too_long = skip`"
    else:
        text = f"with `packing = {packing}`, no document is too long: it continues in the next sequence"
        help = "remove `too_long`, or write `packing = whole` or `packing = none`"
    yield CODE.at(
        plan.span("data.too_long"),
        text,
        secondary=(Label(plan.span("data.packing"), "requested here"),),
        help=help,
    )
