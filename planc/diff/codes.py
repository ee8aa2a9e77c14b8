"""Codes of a change: no single plan has them, and no comment in a plan suppresses them."""

from planc.diagnostics import Code, Severity

REDUCTION_ORDER = Code("P804", "reduction-order", "summation order changed", Severity.NOTE)

CODES = (REDUCTION_ORDER,)
