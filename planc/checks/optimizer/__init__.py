"""Rules on the optimizer and its schedule."""

from __future__ import annotations

from planc.checks.optimizer import (
    betas_exchanged,
    block_cut,
    decay_beyond_one,
    epsilon_vanishes,
    group_of_frozen,
    group_sets_nothing,
    implausible_values,
    learning_rate_zero,
    matrices_offloaded,
    matrix_fused,
    nesterov_without_momentum,
    norms_decayed,
    nothing_trained,
    rest_without_muon,
    schedule_beyond_training,
    updates_rounded_away,
    warmup_beyond_training,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    nothing_trained.check,
    group_of_frozen.check,
    epsilon_vanishes.check,
    learning_rate_zero.check,
    betas_exchanged.check,
    decay_beyond_one.check,
    implausible_values.check,
    norms_decayed.check,
    updates_rounded_away.check,
    warmup_beyond_training.check,
    schedule_beyond_training.check,
    nesterov_without_momentum.check,
    group_sets_nothing.check,
    rest_without_muon.check,
    matrix_fused.check,
    matrices_offloaded.check,
    block_cut.check,
)
