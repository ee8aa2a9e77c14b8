"""Rules on adapters."""

from planc.checks.adapters import exports, not_adaptable, unsupported
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (not_adaptable.check, unsupported.check, exports.check)
