"""Experts with a capacity in one process, for the reference: tokens of a sequence counted one by one."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn


def limit_tokens(experts: nn.Module, *, capacity: float, length: int) -> None:
    """Leave out of a token's sum the experts that earlier tokens of its sequence have filled.

    The module sees the tokens of one sequence at a time, whose capacity is that of one of this length.
    """
    inner: Any = experts.forward
    number = next(len(parameter) for parameter in experts.parameters() if parameter.ndim == 3)

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        most = math.ceil(Fraction(str(capacity)) * length * chosen.shape[1] / number)
        taken = torch.zeros(chosen.shape, dtype=torch.bool)
        counts: Counter[int] = Counter()
        for token, experts_of_token in enumerate(chosen.tolist()):
            for place, expert in enumerate(experts_of_token):
                taken[token, place] = counts[expert] < most
                counts[expert] += 1
        result: Tensor = inner(tokens, chosen, torch.where(taken, weights, torch.zeros_like(weights)))
        return result

    experts.forward = forward
