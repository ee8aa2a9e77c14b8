"""What planc says about a plan: diagnostics as values, and their renderers."""

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
