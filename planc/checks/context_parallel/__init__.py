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
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    buffer_dim.check,
    sequence_over_cp.check,
    ulysses_heads.check,
    recurrent_under_cp.check,
    value_dim_under_cp.check,
    eager_in_parts.check,
    positions_apart.check,
    positions_by_model.check,
)
