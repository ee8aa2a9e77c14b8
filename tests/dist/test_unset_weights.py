"""Weights that a model's own initialization leaves unset."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from planc.modeling.initialization import draw, unset_tensors
from planc.modeling.placed_draws import Values
from planc.runtime.errors import RunError
from planc.runtime.torch.weights.weights import require_set


class Scale(nn.Module):
    """A module that no `_init_weights` knows, with a parameter and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))
        self.register_buffer("floor", torch.zeros(width))


class Scaled(PreTrainedModel):
    """Layers of a linear module and a scale. Only the linear module is initialized."""

    def __init__(self, *, width: int = 4) -> None:
        super().__init__(PreTrainedConfig())
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.scales = nn.ModuleList(Scale(width) for _ in range(2))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            module.bias.data.zero_()


def on_meta(model: type[Scaled] = Scaled, *, width: int = 4) -> Scaled:
    with torch.device("meta"):
        return model(width=width)


def test_a_parameter_that_nothing_sets_is_refused_by_name() -> None:
    with pytest.raises(RunError, match=r"does not set scales\.0\.factor"):
        draw(on_meta(), seed=0, keep=require_set)


def test_what_is_set_is_kept() -> None:
    kept: dict[str, Values] = {}
    draw(on_meta(), seed=0, keep=kept.__setitem__)
    assert [name for name, values in kept.items() if not values.is_unset()] == [
        *("linears.0.weight", "linears.0.bias", "linears.1.weight", "linears.1.bias")
    ]


LEFT = ("scales.0.factor", "scales.0.floor", "scales.1.factor", "scales.1.floor")


@pytest.mark.parametrize("width", [4, 2**17], ids=["small", "large"])
def test_parameters_and_buffers_of_every_layer_are_named(width: int) -> None:
    """Large tensors are not drawn: of theirs it is seen that nothing writes to them."""
    assert unset_tensors(on_meta(width=width)) == LEFT


def test_what_is_set_in_part_is_unset() -> None:
    class HalfScaled(Scaled):
        def _init_weights(self, module: nn.Module) -> None:
            super()._init_weights(module)
            if isinstance(module, Scale):
                nn.init.zeros_(module.factor[:2])
                nn.init.zeros_(module.floor)  # type: ignore[arg-type]

    assert unset_tensors(on_meta(HalfScaled)) == ("scales.0.factor", "scales.1.factor")
