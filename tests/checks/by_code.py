"""What a check found, by code."""

from __future__ import annotations

from planc.api import Checked
from planc.diagnostics import Diagnostic


def codes(checked: Checked) -> list[str]:
    return [diagnostic.code.code for diagnostic in checked.diagnostics]


def of(code: str, checked: Checked) -> list[Diagnostic]:
    return [diagnostic for diagnostic in checked.diagnostics if diagnostic.code.code == code]


def only(checked: Checked, code: str) -> Diagnostic:
    found = of(code, checked)
    assert len(found) == 1, codes(checked)
    return found[0]
