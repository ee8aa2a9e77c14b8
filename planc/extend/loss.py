"""Losses: a value for each token, of its logits and its label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

LOSS = Kind("loss", "train.loss", passes=("logits", "labels"), offers=("input_ids", "position_ids"))
Loss = TypeVar("Loss", bound=Callable[..., Any])


def loss(name: str) -> Callable[[Loss], Loss]:
    """Register a loss: `train { loss = NAME(argument = value) }` in a plan that names the file.

    A loss is a function of `logits` [T, vocabulary], float32 or float64, and `labels` [T], int64, that
    returns T values, one for each token. planc sums those of tokens that have a label, over all micro-batches
    and ranks, and divides by the number of these tokens. A keyword-only parameter named `input_ids` or
    `position_ids` gets those of the tokens, [T]; all others get their values in the plan. A token without a
    label has label 0 here. No other column of the rows reaches a loss.

    Before the first step, planc tries that the value of a token depends on nothing but the token's own
    logits, label and ids: then it is the same in any chunk, micro-batch and part of a sequence, on any rank.
    """
    return lambda target: mark(LOSS, target, name)
