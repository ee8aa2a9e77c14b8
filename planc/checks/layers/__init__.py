"""Rules on what wraps layers: activation checkpointing, torch.compile, and float16."""

from __future__ import annotations

from planc.checks.layers import (
    checkpointing_on_list,
    compiled_around_unit,
    compiled_list,
    compiled_loop,
    compiled_own_loss,
    compiled_ring,
    float16_unscaled,
    nested_checkpointing,
    recomputed_in_pieces,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    checkpointing_on_list.check,
    nested_checkpointing.check,
    recomputed_in_pieces.check,
    compiled_list.check,
    compiled_loop.check,
    compiled_own_loss.check,
    compiled_ring.check,
    compiled_around_unit.check,
    float16_unscaled.check,
)
