"""The phases of a check. Errors in one phase stop the phases after it."""

from __future__ import annotations

from enum import IntEnum

from planc.checks import RULES
from planc.diagnostics import Code
from planc.plan import codes as plan_codes
from planc.syntax import codes as syntax_codes

_OF_SOUND = frozenset(code for rule in RULES if rule.of_sound for code in rule.codes)


class Phase(IntEnum):
    """A stage of a check; errors of one stop the next."""

    SYNTAX = 0
    LINK = 1
    RESOLVE = 2
    MODEL = 3
    SOUND = 4
    """Rules that report nothing if another rule finds an error."""


def phase_of(code: Code) -> Phase:
    """The phase that reports a code."""
    if code in syntax_codes.CODES:
        return Phase.SYNTAX
    if code in plan_codes.LINK_CODES:
        return Phase.LINK
    if code in plan_codes.RESOLVE_CODES:
        return Phase.RESOLVE
    return Phase.SOUND if code in _OF_SOUND else Phase.MODEL
