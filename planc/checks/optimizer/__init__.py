"""Rules on the optimizer and its schedule."""

from __future__ import annotations

from planc.checks.optimizer import (
    betas_exchanged,
    decay_beyond_one,
    epsilon_vanishes,
    group_sets_nothing,
    implausible_values,
    learning_rate_zero,
    nesterov_without_momentum,
    norms_decayed,
    schedule_beyond_training,
    updates_rounded_away,
    warmup_beyond_training,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    epsilon_vanishes.RULE,
    learning_rate_zero.RULE,
    betas_exchanged.RULE,
    decay_beyond_one.RULE,
    implausible_values.RULE,
    norms_decayed.RULE,
    updates_rounded_away.RULE,
    warmup_beyond_training.RULE,
    schedule_beyond_training.RULE,
    nesterov_without_momentum.RULE,
    group_sets_nothing.RULE,
)
