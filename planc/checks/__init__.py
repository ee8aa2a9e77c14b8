"""Every rule, one file each, registered here in one tuple."""

from collections.abc import Iterator

from planc.checks import kv_heads_indivisible
from planc.checks.model import Rule, Subject
from planc.diagnostics import Diagnostic

RULES: tuple[Rule, ...] = (kv_heads_indivisible.RULE,)


def run_checks(subject: Subject) -> Iterator[Diagnostic]:
    """The findings of all rules, in registration order."""
    for rule in RULES:
        yield from rule.check(subject)


__all__ = ["RULES", "Rule", "Subject", "run_checks"]
