"""Masks of sliding windows, and values that are narrower than queries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import scaled_dot_product_attention

from planc.runtime.torch.attention.plain import plain_attention
from planc.runtime.torch.attention.windows import Windows

LENGTH, WINDOW = 12, 5


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("num_queries", [LENGTH, 4])
def test_a_query_sees_itself_and_what_its_window_holds(num_queries: int) -> None:
    mask = Windows().bias(drawn(1, 2, num_queries, 8), num_keys=LENGTH, window=WINDOW)
    first = LENGTH - num_queries
    seen = [[0 <= row + first - key < WINDOW for key in range(LENGTH)] for row in range(num_queries)]
    assert torch.equal(mask == 0, torch.tensor(seen))
    assert bool((mask[mask != 0] == -torch.inf).all())


def test_layers_save_one_mask() -> None:
    windows, saved = Windows(), set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape[-2:] == (LENGTH, LENGTH):
            saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        for _ in range(3):
            query = drawn(2, 4, LENGTH, 8)
            plain_attention(query, key=query, value=query, scale=0.3, windows=windows, window=WINDOW)
    assert len(saved) == 1


def test_narrow_values_keep_no_scores() -> None:
    """The output and all gradients are those of torch's own kernel for them."""
    query, key, value = drawn(2, 4, LENGTH, 24), drawn(2, 4, LENGTH, 24), drawn(2, 4, LENGTH, 16)
    saved: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        out = plain_attention(query, key=key, value=value, scale=0.3, windows=Windows())
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    assert saved
    assert not [shape for shape in saved if shape[-2:] == (LENGTH, LENGTH)]
    torch.testing.assert_close(out, expected)
    tensors, factor = (query, key, value), torch.arange(16.0, dtype=torch.float64)
    found = torch.autograd.grad((out * factor).sum(), tensors)
    torch.testing.assert_close(found, torch.autograd.grad((expected * factor).sum(), tensors))
