"""What a rehearsal can find."""

from __future__ import annotations

from planc.diagnostics import Code, Severity

REHEARSAL_FAILED = Code("P850", "rehearsal-failed", "the run would fail here")
ESTIMATE_DIFFERS = Code(
    "P851",
    "estimate-differs",
    "the estimate is not what the rehearsal counted",
    Severity.WARNING,
)

CODES: tuple[Code, ...] = (REHEARSAL_FAILED, ESTIMATE_DIFFERS)
