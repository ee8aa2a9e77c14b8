"""The estimated peak against the memory of the device that the plan names."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.devices.hardware import FITS, RISKY, Change, Demand
from planc.diagnostics import Code, Diagnostic, Severity
from planc.source import Span
from planc.tables import format_bytes

CODE = Code("P810", "does-not-fit", "the plan needs more memory than its device has")
TIGHT = Code("P811", "fits-barely", "the plan may run out of memory", Severity.WARNING)

_NUM_PARTS = 4


@reports(CODE, TIGHT, of_sound=True)
def check(subject: Subject) -> Findings:
    """One finding at `hardware.gpu` if the estimated peak leaves too little of the device's memory."""
    if subject.plan.hardware is None:
        return
    found = subject.demand()
    if found is None or found.fits:
        return
    yield _finding(found, subject.plan.span("hardware.gpu"), notes=tuple(_notes(found)), help=_help(found))


def rehearsed(demand: Demand, span: Span) -> Diagnostic | None:
    """The same finding for a peak that a rehearsal measured; None if it fits."""
    if demand.fits:
        return None
    source = "the rehearsal measured this: it replays planc's operations on a simulated allocator"
    help = "run `planc estimate` for a breakdown of the memory"
    return _finding(demand, span, notes=(source, *_notes(demand)), help=help)


def _finding(demand: Demand, span: Span, *, notes: tuple[str, ...], help: str) -> Diagnostic:
    code = CODE if demand.share > RISKY else TIGHT
    peak, memory = format_bytes(demand.peak_bytes), format_bytes(demand.device.memory_bytes)
    text = f"{peak} of {memory}, {100 * demand.share:.0f} %"
    return code.at(span, text, notes=notes, help=help)


def _notes(demand: Demand) -> Iterator[str]:
    parts = ", ".join(f"{name} {format_bytes(num_bytes)}" for name, num_bytes in demand.parts[:_NUM_PARTS])
    yield f"the peak is in {demand.phase}: {parts}"
    yield (
        f"up to {100 * FITS:.0f} % counts as fitting, since the CUDA context and NCCL need memory outside "
        "PyTorch's allocator, and the estimate is not calibrated to a machine"
    )


def _help(demand: Demand) -> str:
    if not demand.changes:
        return "no two changes make it fit; run `planc estimate` for a breakdown of the memory"
    return f"to fit, set {'; or '.join(map(_change, demand.changes))}"


def _change(one: Change) -> str:
    """`mesh.dp_shard = 16 (16 ranks, peak 27.39 GiB)`: the ranks, if their number changes."""
    settings, _, ranks = " and ".join(one.texts).partition(", on ")
    return f"{settings} ({f'{ranks}, ' if ranks else ''}peak {format_bytes(one.peak_bytes)})"


# An indivisible batch has no step to estimate.
