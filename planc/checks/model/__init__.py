"""Rules on the model itself: features that planc does not compute."""

from __future__ import annotations

from planc.checks.model import (
    attention_unsupported,
    loss_left_out,
    random_training,
    weights_unset,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    weights_unset.RULE,
    random_training.RULE,
    loss_left_out.RULE,
    attention_unsupported.RULE,
)
