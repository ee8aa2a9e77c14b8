"""Rules on what wraps layers: activation checkpointing, torch.compile, and float16."""

from __future__ import annotations

from planc.checks.layers import (
    checkpointing_on_list,
    compiled_around_unit,
    compiled_list,
    compiled_ring,
    float16_unscaled,
    nested_checkpointing,
    recomputed_in_pieces,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    checkpointing_on_list.RULE,
    nested_checkpointing.RULE,
    recomputed_in_pieces.RULE,
    compiled_list.RULE,
    compiled_ring.RULE,
    compiled_around_unit.RULE,
    float16_unscaled.RULE,
)
