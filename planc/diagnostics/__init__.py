"""Diagnostics as values, and their renderers: everything that planc reports about a plan."""

from planc.diagnostics.diagnostic import (
    Applicability,
    Code,
    Diagnostic,
    Fix,
    Label,
    Severity,
    has_errors,
    in_order,
)

__all__ = ["Applicability", "Code", "Diagnostic", "Fix", "Label", "Severity", "has_errors", "in_order"]
