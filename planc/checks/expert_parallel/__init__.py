"""Rules on expert parallelism."""

from __future__ import annotations

from planc.checks.expert_parallel import experts_apart, experts_over_ep, not_dispatchable, unsupported
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    not_dispatchable.check,
    experts_over_ep.check,
    experts_apart.check,
    unsupported.check,
)
