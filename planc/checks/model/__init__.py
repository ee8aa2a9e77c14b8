"""Rules on the model itself: features that planc does not compute."""

from __future__ import annotations

from planc.checks.model import (
    attention_unsupported,
    experts_unbalanced,
    random_training,
    rope_unscalable,
    strip_of_random,
    weights_unset,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    weights_unset.RULE,
    random_training.RULE,
    experts_unbalanced.RULE,
    attention_unsupported.RULE,
    strip_of_random.RULE,
    rope_unscalable.RULE,
)
