"""Attention that holds tensors of queries x keys."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.tables import format_bytes

CODE = Code("P814", "pairs-in-memory", "attention stores values for every pair of tokens", Severity.WARNING)


@reports(CODE, of_sound=True)
def check(subject: Subject) -> Findings:
    """One finding at `model.attention` if scores and masks take a large share of the memory."""
    found = subject.pairs()
    if found is None:
        return
    names = " and ".join(dict.fromkeys(name for name, _, _ in found.kernels))
    reasons = dict.fromkeys(reason for _, reasons, _ in found.kernels for reason in reasons)
    share = f"{100 * found.share:.0f} % of {found.share_of}"
    help = "reduce `sequence_length` or `micro_batch`"
    if found.change is not None:
        help = f"set {found.change.texts[0]}, which leaves {format_bytes(found.change.peak_bytes)}"
    yield CODE.at(
        subject.plan.span("model.attention"),
        f"{names} attention holds {format_bytes(found.num_bytes)} for pairs of tokens, {share}",
        notes=(
            *((f"no better kernel runs: {', '.join(reasons)}",) if reasons else ()),
            "it grows with the square of `sequence_length`",
        ),
        help=help,
    )
