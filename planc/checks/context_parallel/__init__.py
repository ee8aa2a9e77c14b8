"""Rules on context parallelism, and on models that read positions."""

from __future__ import annotations

from planc.checks.context_parallel import (
    buffer_dim,
    eager_in_parts,
    positions_apart,
    positions_by_model,
    recurrent_under_cp,
    sequence_over_cp,
    ulysses_heads,
    value_dim_under_cp,
    window_under_cp,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    buffer_dim.RULE,
    sequence_over_cp.RULE,
    window_under_cp.RULE,
    ulysses_heads.RULE,
    recurrent_under_cp.RULE,
    value_dim_under_cp.RULE,
    eager_in_parts.RULE,
    positions_apart.RULE,
    positions_by_model.RULE,
)
