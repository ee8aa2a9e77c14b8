"""Views: any block of what whole-tensor operations would make, without the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from planc.runtime.torch.weights import views as weights_views
from planc.runtime.torch.weights.views import UnknownOperation, View, leaf


def view_of(tensor: Tensor, *, taken: list[int] | None = None) -> View:
    """A leaf that notes how many numbers each read took."""

    def read(block: tuple[slice, ...]) -> Tensor:
        part = tensor[block] if block else tensor
        if taken is not None:
            taken.append(part.numel())
        return part

    return leaf("one", shape=tensor.shape, read=read)


def read_block(view: View, block: tuple[slice, ...]) -> Tensor:
    out = torch.full([one.stop - one.start for one in block], torch.nan)
    view.fill(out, block)
    return out


def in_turns(tensor: Any, *, inverse: bool = False) -> Any:
    """Rows of two halves in turns, or back, as transformers' Interleave."""
    num_experts, num_rows, width = tensor.shape
    pairs = (2, num_rows // 2) if inverse else (num_rows // 2, 2)
    return tensor.reshape([num_experts, *pairs, width]).transpose(1, 2).reshape(tensor.shape).contiguous()


PARTS = [torch.arange(24, dtype=torch.float32).reshape(4, 6) + 100 * index for index in range(3)]

RECIPES: dict[str, Callable[[list[Any]], Any]] = {
    "stack": lambda parts: torch.stack(parts, dim=0),
    "stack inside": lambda parts: torch.stack(parts, dim=1),
    "stack last": lambda parts: torch.stack(parts, dim=-1),
    "cat": lambda parts: torch.cat(parts, dim=0),
    "cat columns": lambda parts: torch.cat(parts, dim=-1),
    "chunk": lambda parts: torch.chunk(parts[0], 2, dim=1)[1],
    "uneven chunk": lambda parts: torch.chunk(parts[0], 4, dim=1)[2],
    "transpose": lambda parts: torch.transpose(parts[1], 0, 1).contiguous(),
    "squeeze": lambda parts: torch.chunk(torch.stack(parts, dim=0), 3, dim=0)[2].squeeze(0),
    "experts": lambda parts: torch.cat([torch.stack(parts, dim=0), torch.stack(parts[::-1], dim=0)], dim=1),
    "experts apart": lambda parts: torch.chunk(torch.chunk(torch.stack(parts, dim=0), 2, dim=1)[1], 3, dim=0)[
        1
    ].squeeze(0),
    "transposed experts": lambda parts: torch.transpose(torch.stack(parts, dim=0), 1, 2),
    "reshape": lambda parts: parts[0].reshape(2, 2, 3, 2),
    "reshape to a length that follows": lambda parts: parts[0].reshape((2, -1)),
    "reshape of all": lambda parts: torch.stack(parts, dim=0).reshape(-1),
    "reshape across dimensions": lambda parts: parts[0].reshape(3, 8),
    "reshape with lengths of 1": lambda parts: parts[0].reshape(4, 1, 6, 1).reshape(1, 4, 6),
    "rows in turns": lambda parts: in_turns(torch.stack(parts, dim=0)),
    "rows no longer in turns": lambda parts: in_turns(torch.stack(parts, dim=0), inverse=True),
    "reshape of a transpose": lambda parts: torch.stack(parts, dim=0).transpose(0, -1).reshape(8, 9),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(data=st.data())
def test_any_block_is_that_of_the_whole(recipe: Callable[[list[Any]], Any], data: st.DataObject) -> None:
    whole, view = recipe(PARTS), recipe([view_of(part) for part in PARTS])
    assert view.shape == tuple(whole.shape)
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in whole.shape]
    block = tuple(slice(start, stop) for start, stop in bounds)
    assert torch.equal(read_block(view, block), whole[block])


def test_only_the_numbers_of_the_block_are_read() -> None:
    taken: list[int] = []
    view: View = RECIPES["experts"]([view_of(part, taken=taken) for part in PARTS])
    assert read_block(view, (slice(1, 3), slice(2, 6), slice(0, 3))).numel() == sum(taken) == 24


def test_reads_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_views, "_PIECE_BYTES", 50)
    taken: list[int] = []
    view = view_of(PARTS[0], taken=taken)
    assert torch.equal(read_block(view, view.whole), PARTS[0])
    # 12 numbers of 4 bytes are two rows.
    assert taken == [12, 12]


def test_a_scalar_is_read() -> None:
    assert read_block(view_of(torch.tensor(3.0)), ()).item() == 3.0


@pytest.mark.parametrize("piece_bytes", [1, 60, 100, 2**20])
def test_rows_in_turns_are_read_in_pieces(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_views, "_PIECE_BYTES", piece_bytes)
    taken: list[int] = []
    view = in_turns(view_of(torch.stack(PARTS), taken=taken))
    assert torch.equal(read_block(view, view.whole), in_turns(torch.stack(PARTS)))
    # Each number once, and no read of more than a piece, or than two rows of 6, if those are more.
    assert sum(taken) == 72
    assert max(taken) <= max(12, piece_bytes // 4)


def test_a_half_of_rows_in_turns_takes_no_more_than_the_whole() -> None:
    taken: list[int] = []
    view = in_turns(view_of(torch.stack(PARTS), taken=taken))
    read_block(view, (slice(1, 2), slice(0, 2), slice(0, 6)))
    assert sum(taken) == 24


@pytest.mark.parametrize("shape", [(5, 5), (), (7, -1)])
def test_a_shape_of_other_numbers_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"of shape \[4, 6\] is to become"):
        view_of(PARTS[0]).reshape(shape)


@pytest.mark.parametrize("operation", [lambda view: view.cumsum(0), lambda view: torch.flip(view, [0])])
def test_an_operation_that_is_not_known_is_named(operation: Callable[[View], object]) -> None:
    with pytest.raises(UnknownOperation, match=r"Tensor\.cumsum|torch\.flip"):
        operation(view_of(PARTS[0]))


@pytest.mark.parametrize("operation", [torch.stack, torch.cat])
def test_parts_that_do_not_fit_together_are_an_error(operation: Callable[[list[View]], View]) -> None:
    with pytest.raises(ValueError, match=r"\[3, 6\], \[4, 5\]"):
        operation([view_of(torch.zeros(4, 5)), view_of(torch.zeros(3, 6))])
