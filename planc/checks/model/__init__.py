"""Rules on the model itself: features that planc does not compute."""

from __future__ import annotations

from planc.checks.model import (
    attention_unsupported,
    balance_impossible,
    experts_unbalanced,
    random_training,
    rope_unscalable,
    strip_of_random,
    task_unsupported,
    weights_unset,
)
from planc.checks.support.rule import Rule

TASK_RULES: tuple[Rule, ...] = (task_unsupported.check,)
"""The rules on settings that a task refuses."""

RULES: tuple[Rule, ...] = (
    weights_unset.check,
    random_training.check,
    experts_unbalanced.check,
    balance_impossible.check,
    attention_unsupported.check,
    strip_of_random.check,
    rope_unscalable.check,
)
