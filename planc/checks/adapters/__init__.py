"""Rules on adapters."""

from planc.checks.adapters import exports, not_adaptable, not_cast, not_in_blocks, start_differs, unsupported
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    not_adaptable.check,
    unsupported.check,
    exports.check,
    start_differs.check,
    not_in_blocks.check,
    not_cast.check,
)
