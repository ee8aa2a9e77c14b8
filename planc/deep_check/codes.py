"""The codes of a rehearsal's findings."""

from __future__ import annotations

from planc.diagnostics import Code, Severity

REHEARSAL_FAILED = Code("P850", "rehearsal-failed", "the run would fail here")
ESTIMATE_DIFFERS = Code(
    "P851",
    "estimate-differs",
    "estimate and rehearsal differ",
    Severity.WARNING,
)

CODES: tuple[Code, ...] = (REHEARSAL_FAILED, ESTIMATE_DIFFERS)
