"""Edges of tensor-parallel modules inside of compiled code: the same numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from planc.runtime.torch.parallel.transfers import Crossing, Move, Ranks
from planc.styles.edges import Transfer


@pytest.mark.parametrize("batch", [1, 2])
def test_a_compiled_split_has_its_gradient(batch: int) -> None:
    """With one sample a rank's part is contiguous as it is: PyTorch 2.11 took that for a constant."""
    crossing = Crossing(Move(Transfer.SPLIT, 1), Move(Transfer.PAD, 1), Ranks("none", size=2, rank=1), 6)

    def own_half(value: Tensor) -> Tensor:
        return crossing(value.sin())

    value = torch.randn(batch, 6, 4, requires_grad=True)
    found = torch.compile(own_half, fullgraph=True, backend="aot_eager")(value)
    weights = torch.randn(found.shape)
    (gradient,) = torch.autograd.grad(found, value, weights)
    expected = torch.zeros_like(value)
    expected[:, 3:] = weights * value.detach()[:, 3:].cos()
    torch.testing.assert_close(found, value.detach()[:, 3:].sin())
    torch.testing.assert_close(gradient, expected)
