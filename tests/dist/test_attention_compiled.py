"""Attention inside of compiled code: one graph, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from planc.runtime.torch.attention.blocks import lower_right_attention
from planc.runtime.torch.attention.plain import plain_attention
from planc.runtime.torch.attention.windows import Windows
from tests.dist.test_attention import leaves, relative_error

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain_attention(query, key=key, value=value, scale=0.3, windows=Windows())


def windowed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain_attention(query, key=key, value=value, scale=0.3, windows=Windows(), window=5)


def last(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return lower_right_attention(query[:, :, -7:], key=key, value=value, scale=0.3)


@pytest.mark.parametrize("attention", [whole, windowed, last])
def test_compiled_attention_is_one_graph_with_the_same_numbers(attention: Attention) -> None:
    inputs = leaves(*(torch.randn(2, heads, 32, 16) for heads in (4, 2, 2)))
    expected = attention(*inputs)
    found = torch.compile(attention, fullgraph=True, backend="aot_eager")(*inputs)
    grad_out = torch.randn(expected.shape)
    pairs = zip(
        (found, *torch.autograd.grad(found, inputs, grad_out)),
        (expected, *torch.autograd.grad(expected, inputs, grad_out)),
        strict=True,
    )
    assert max(relative_error(one, other) for one, other in pairs) < 1e-5
