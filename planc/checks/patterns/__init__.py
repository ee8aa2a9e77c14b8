"""Rules on patterns: what they match, and which of them overlap or override."""

from __future__ import annotations

from planc.checks.patterns import (
    names_nothing,
    overlapping_rules,
    override_of_nothing,
    pattern_partial,
    pattern_unmatched,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    # Unmatched patterns first: later rules skip mere consequences of their findings.
    pattern_unmatched.check,
    overlapping_rules.check,
    override_of_nothing.check,
    pattern_partial.check,
    names_nothing.check,
)
