"""Codes of a change: no plan alone gives them, and no comment in a plan suppresses them."""

from planc.diagnostics import Code, Severity

REDUCTION_ORDER = Code(
    "P804", "reduction-order", "the change alters the order in which numbers are summed", Severity.NOTE
)

CODES = (REDUCTION_ORDER,)
