"""Attention that holds tensors of queries x keys."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.devices.attention_kernels import Kernel
from planc.diagnostics import Code, Severity
from planc.tables import format_bytes

CODE = Code("P814", "pairs-in-memory", "attention stores values for every pair of tokens", Severity.WARNING)


@reports(CODE, of_sound=True)
def check(subject: Subject) -> Findings:
    """One finding at `model.attention` if scores and masks take a large share of the memory."""
    pairs = subject.pairs()
    if pairs is None:
        return
    names = " and ".join(dict.fromkeys(name for name, _, _ in pairs.kernels))
    reasons = dict.fromkeys(reason for _, reasons, _ in pairs.kernels for reason in reasons)
    share = f"{100 * pairs.share:.0f} % of {pairs.share_of}"
    help = "reduce `sequence_length` or `micro_batch`"
    if pairs.change is not None:
        help = f"set {pairs.change.texts[0]}, which leaves {format_bytes(pairs.change.peak_bytes)}"
    yield CODE.at(
        subject.plan.span("model.attention"),
        f"{names} attention holds {format_bytes(pairs.num_bytes)} for pairs of tokens, {share}",
        notes=(
            *((f"no better kernel runs: {', '.join(reasons)}",) if reasons else ()),
            *(("it grows with the square of `sequence_length`",) if names != Kernel.MATH else ()),
        ),
        help=help,
    )
