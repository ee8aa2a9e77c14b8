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

EXTENSION_NOT_RUN = Code("P852", "extension-not-run", "the plan's own code is not run unasked")

CODES: tuple[Code, ...] = (REHEARSAL_FAILED, ESTIMATE_DIFFERS, EXTENSION_NOT_RUN)
