"""Weights that a model's own initialisation leaves as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planc.runtime.backends.torch.weights import draw, require_set
from planc.runtime.errors import RunError


class Scaled(nn.Module):
    """A linear layer and a scale that `_init_weights` does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.zeros_(module.bias)


def test_a_parameter_that_nothing_sets_is_refused_by_name() -> None:
    with torch.device("meta"):
        model = Scaled()
    with pytest.raises(RunError, match="does not set scale"):
        draw(model, seed=0, keep=require_set)


def test_what_is_set_is_kept() -> None:
    with torch.device("meta"):
        model = Scaled()
    kept: dict[str, torch.Tensor] = {}
    draw(model, seed=0, keep=kept.__setitem__)
    assert [*kept] == ["scale", "linear.weight", "linear.bias"]
    assert not kept["linear.weight"].isnan().any()
