"""Units, and numbers exactly as written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from planc.syntax import ast

if TYPE_CHECKING:
    from fractions import Fraction

STEPS = {"steps": 1, "step": 1}
SECONDS = {"s": 1, "min": 60, "h": 3600}
_DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TOKENS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
"""Multiples that a number of tokens may be written in: decimal, or binary with an `i`."""
BYTES = _DECIMAL | _BINARY
ALL_UNITS = STEPS | SECONDS | BYTES


def exact(number: ast.Number) -> int | Fraction | None:
    """The number exactly as written: 0.55 h is 1,980 s. None beyond the range of a float, such as 1e999."""
    mantissa = number.text.lower().partition("e")[0]
    if number.value == 0 and not mantissa.strip("-0_."):
        return 0
    if number.value == 0 or not math.isfinite(number.value):
        return None
    text = number.text.replace("_", "")
    if text.lstrip("-").isdigit():
        return int(text)
    from fractions import Fraction  # most plans have only whole numbers and should not pay for this import

    return Fraction(text)
