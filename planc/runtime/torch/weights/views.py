"""Lazy tensors that are made from others and read in blocks: only requested blocks are in memory.

transformers defines how a checkpoint's tensors become a model's by operations on whole tensors. Run on views,
the same operations determine where each block of the result comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from planc.runtime.torch.parallel.blocks import Slices

_PIECE_BYTES = 32 * 2**20
"""The maximum size of a read: a rank holds this in addition to the tensor that it fills."""


class UnknownOperation(AttributeError):
    """An operation on whole tensors that views do not support."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor of `shape`. `fill(out, block)` copies a block of it into `out`, which has the block's shape.

    `sources` are the names of the tensors that it is made from, in the order in which they are first read.
    """

    shape: tuple[int, ...]
    fill: Callable[[Tensor, Slices], None]
    sources: tuple[str, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _OPERATIONS:
            raise UnknownOperation(f"torch.{getattr(func, '__name__', func)}")
        return _OPERATIONS[func](*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        raise UnknownOperation(f"Tensor.{name}")

    @property
    def whole(self) -> Slices:
        """The block that covers the whole tensor."""
        return tuple(slice(0, size) for size in self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def contiguous(self) -> View:
        return self

    def squeeze(self, dim: int) -> View:
        """The view without a dimension of size 1."""
        tensor_dim = dim % self.ndim
        if self.shape[tensor_dim] != 1:
            return self

        def fill(out: Tensor, block: Slices) -> None:
            self.fill(out.unsqueeze(tensor_dim), (*block[:tensor_dim], slice(0, 1), *block[tensor_dim:]))

        return View((*self.shape[:tensor_dim], *self.shape[tensor_dim + 1 :]), fill, self.sources)

    def transpose(self, dim0: int, dim1: int) -> View:
        return _transposed(self, dim0, dim1)

    def reshape(self, *shape: int | Sequence[int]) -> View:
        """The same numbers in the same order; one length may be -1."""
        lengths: list[int] = []
        for one in shape:
            lengths += [one] if isinstance(one, int) else one
        return _reshaped(self, lengths)


def leaf(name: str, *, shape: Sequence[int], read: Callable[[Slices], Tensor]) -> View:
    """A tensor that is read from elsewhere, in pieces of bounded size."""

    def fill(out: Tensor, block: Slices) -> None:
        if not block:
            out.copy_(read(block))
            return
        first, *rest = block
        row_bytes = prod(one.stop - one.start for one in rest) * out.element_size()
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        for start in range(first.start, first.stop, step):
            stop = min(start + step, first.stop)
            out[start - first.start : stop - first.start].copy_(read((slice(start, stop), *rest)))

    return View(tuple(shape), fill, (name,))


def _stacked(views: Sequence[View], dim: int = 0) -> View:
    shapes = {view.shape for view in views}
    if len(shapes) != 1:
        raise ValueError(f"can't stack tensors of unequal shapes: {_listed(shapes)}")
    [shape] = shapes
    tensor_dim = dim % (len(shape) + 1)

    def fill(out: Tensor, block: Slices) -> None:
        span, rest = block[tensor_dim], (*block[:tensor_dim], *block[tensor_dim + 1 :])
        for index in range(span.start, span.stop):
            views[index].fill(out.select(tensor_dim, index - span.start), rest)

    return View((*shape[:tensor_dim], len(views), *shape[tensor_dim:]), fill, _sources(views))


def _concatenated(views: Sequence[View], dim: int = 0) -> View:
    tensor_dim = dim % views[0].ndim
    around = {(*view.shape[:tensor_dim], *view.shape[tensor_dim + 1 :]) for view in views}
    if len(around) != 1:
        shapes = {view.shape for view in views}
        raise ValueError(f"can't concatenate tensors of unequal shapes: {_listed(shapes)}")

    def fill(out: Tensor, block: Slices) -> None:
        span, offset = block[tensor_dim], 0
        for view in views:
            end = offset + view.shape[tensor_dim]
            start, stop = max(span.start, offset), min(span.stop, end)
            if start < stop:
                part = out.narrow(tensor_dim, start - span.start, stop - start)
                view.fill(part, _with(block, tensor_dim, slice(start - offset, stop - offset)))
            offset = end

    length = sum(view.shape[tensor_dim] for view in views)
    first = views[0].shape
    return View((*first[:tensor_dim], length, *first[tensor_dim + 1 :]), fill, _sources(views))


def _chunked(view: View, chunks: int, dim: int = 0) -> tuple[View, ...]:
    """Chunks as from torch.chunk: the last may be shorter."""
    tensor_dim = dim % view.ndim
    length = view.shape[tensor_dim]
    step = -(-length // chunks)
    return tuple(
        _narrowed(view, tensor_dim, start=start, length=min(step, length - start))
        for start in range(0, length, step)
    )


def _narrowed(view: View, tensor_dim: int, *, start: int, length: int) -> View:
    def fill(out: Tensor, block: Slices) -> None:
        span = block[tensor_dim]
        view.fill(out, _with(block, tensor_dim, slice(span.start + start, span.stop + start)))

    shape = (*view.shape[:tensor_dim], length, *view.shape[tensor_dim + 1 :])
    return View(shape, fill, view.sources)


def _transposed(view: View, dim0: int, dim1: int) -> View:
    first, second = dim0 % view.ndim, dim1 % view.ndim

    def swapped(items: Sequence[Any]) -> tuple[Any, ...]:
        order = list(items)
        order[first], order[second] = order[second], order[first]
        return tuple(order)

    def fill(out: Tensor, block: Slices) -> None:
        view.fill(out.transpose(first, second), swapped(block))

    return View(swapped(view.shape), fill, view.sources)


def _reshaped(view: View, shape: Sequence[int]) -> View:
    size, known = prod(view.shape), prod(length for length in shape if length != -1)
    wanted = [size // max(1, known) if length == -1 else length for length in shape]
    if not view.shape or not wanted or prod(wanted) != size:
        raise ValueError(f"a tensor of shape {list(view.shape)} is to become one of shape {list(shape)}")
    # Lengths that both shapes begin or end with stay. At least one of each shape is left in between.
    most = min(view.ndim, len(wanted)) - 1
    first = last = 0
    while first < most and view.shape[first] == wanted[first]:
        first += 1
    while last < most - first and view.shape[-1 - last] == wanted[-1 - last]:
        last += 1
    while view.ndim > first + 1 + last:
        view = _flattened(view, first)
    for place in range(first, len(wanted) - 1 - last):
        view = _unflattened(view, place, rows=wanted[place])
    return view


def _flattened(view: View, tensor_dim: int) -> View:
    """One dimension in place of `tensor_dim` and the next."""
    rows, columns = view.shape[tensor_dim : tensor_dim + 2]

    def fill(out: Tensor, block: Slices) -> None:
        span, offset = block[tensor_dim], 0
        for across, along in _rectangles(span, num_columns=columns):
            sizes = (across.stop - across.start, along.stop - along.start)
            part = torch.unflatten(out.narrow(tensor_dim, offset, prod(sizes)), tensor_dim, sizes)
            view.fill(part, (*block[:tensor_dim], across, along, *block[tensor_dim + 1 :]))
            offset += prod(sizes)

    return View((*view.shape[:tensor_dim], rows * columns, *view.shape[tensor_dim + 2 :]), fill, view.sources)


def _rectangles(span: slice, *, num_columns: int) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) of the parts of a matrix that make up a span of its numbers, in their order."""
    start = span.start
    while start < span.stop:
        row, column = divmod(start, num_columns)
        num_rows = (span.stop - start) // num_columns if column == 0 else 0
        if num_rows:
            yield slice(row, row + num_rows), slice(0, num_columns)
            start += num_rows * num_columns
        else:
            length = min(span.stop - start, num_columns - column)
            yield slice(row, row + 1), slice(column, column + length)
            start += length


def _unflattened(view: View, tensor_dim: int, *, rows: int) -> View:
    """Two dimensions in place of one, the first of `rows`."""
    columns = view.shape[tensor_dim] // rows

    def fill(out: Tensor, block: Slices) -> None:
        across, along = block[tensor_dim : tensor_dim + 2]
        num_rows, width = across.stop - across.start, along.stop - along.start
        if not out.numel():
            return
        # Whole rows, some at a time, of which a part is kept; or few rows, and only that part of each.
        row_bytes = out.element_size() * out.numel() // (num_rows * width) * columns
        is_whole = columns <= num_rows or width == columns
        step = max(1, _PIECE_BYTES // row_bytes) if is_whole else 1
        begin, length = (0, columns) if is_whole else (along.start, width)
        for start in range(0, num_rows, step):
            part = out.narrow(tensor_dim, start, min(step, num_rows - start))
            count = part.shape[tensor_dim]
            shape = (*part.shape[:tensor_dim], count * length, *part.shape[tensor_dim + 2 :])
            first = (across.start + start) * columns + begin
            last = first + (count - 1) * columns + length
            read = part.new_empty(shape)
            view.fill(read, (*block[:tensor_dim], slice(first, last), *block[tensor_dim + 2 :]))
            found = torch.unflatten(read, tensor_dim, (count, length))
            part.copy_(found.narrow(tensor_dim + 1, along.start - begin, width))

    return View((*view.shape[:tensor_dim], rows, columns, *view.shape[tensor_dim + 1 :]), fill, view.sources)


_OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    torch.stack: _stacked,
    torch.cat: _concatenated,
    torch.chunk: _chunked,
    torch.transpose: _transposed,
}


def _with(block: Slices, tensor_dim: int, span: slice) -> Slices:
    return (*block[:tensor_dim], span, *block[tensor_dim + 1 :])


def _sources(views: Sequence[View]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source for view in views for source in view.sources))


def _listed(shapes: set[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in sorted(shapes))
