"""Attention masks that isolate documents which share a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HIDDEN = -1e9
"""Added to the score of a token that is not seen. Finite, so a block of which a query sees nothing has a
log-sum-exp: in the sum over blocks its share is then exactly 0."""

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch's documents: where their tokens are in them, and the place of each token's first."""

    places: Places
    starts: Tensor


class Documents:
    """The documents of the current micro-batch.

    Every rank that holds a part of a sequence has the documents of the whole.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def begin(self, position_ids: Places, *, on_device: Tensor) -> None:
        """Start a new micro-batch, of positions [B, S] in the order of the sequence, which restart with every
        document. `on_device` are the same positions."""
        self.batch = Batch(position_ids, document_starts(on_device))

    def recall(self) -> Callable[[], None]:
        """A function that sets the micro-batch as it is now: backward may compute modules again."""
        return partial(setattr, self, "batch", self.batch)

    def spans(self) -> list[list[tuple[int, int]]]:
        """(start, end) of the documents of each sample, in their order."""
        assert self.batch is not None, "sharding the context comes before the forward"
        places = self.batch.places
        length = places.shape[1]
        starts = [[int(start) for start in np.flatnonzero(row == 0)] for row in places]
        # A sequence may begin inside of a document.
        starts = [row if row[:1] == [0] else [0, *row] for row in starts]
        return [list(zip(row, [*row[1:], length], strict=True)) for row in starts]

    def bias(self, *, queries: Tensor, keys: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """The bias of the scores, [B, 1, Sq, Sk] in `dtype`: 0 where a query sees a key, else HIDDEN.

        `queries` [Sq] and `keys` [Sk] are positions in the whole sequence, on the device. A token sees the
        tokens of its own document up to itself; with a `window`, itself and the window - 1 before it. For
        compiled code, which is the same for all documents: they are in the values of a mask alone.
        """
        assert self.batch is not None, "sharding the context comes before the forward"
        return _bias(self.batch.starts, queries, keys, dtype=dtype, window=window)


def apart(
    query: Tensor, *, key: Tensor, value: Tensor, documents: Documents, attend: Callable[..., Tensor]
) -> Tensor:
    """The attention of every document by itself, [B, H, Sq, Dv]: no score between two of them exists.

    The last query is at the last key. `attend` computes a document's queries over its keys up to them.
    """
    num_keys = key.shape[2]
    before = num_keys - query.shape[2]
    samples = []
    for sample, spans in enumerate(documents.spans()):
        outputs = []
        for start, end in spans:
            first, last = max(start, before), min(end, num_keys)
            if first < last:
                own, keys = slice(sample, sample + 1), slice(start, last)
                rows = query[own, :, first - before : last - before]
                outputs.append(attend(rows, key=key[own, :, keys], value=value[own, :, keys]))
        samples.append(torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0])
    return torch.cat(samples) if len(samples) > 1 else samples[0]


def _bias(starts: Tensor, queries: Tensor, keys: Tensor, *, dtype: torch.dtype, window: int | None) -> Tensor:
    seen = keys <= queries[:, None]
    if window is not None:
        seen &= queries[:, None] - keys < window
    hidden = ~(seen & (starts[:, queries, None] <= keys)).unsqueeze(1)
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, max(HIDDEN, torch.finfo(dtype).min))


def document_starts(position_ids: Tensor) -> Tensor:
    """[B, S] from the positions of whole sequences, which restart with every document."""
    return torch.arange(position_ids.shape[1], device=position_ids.device) - position_ids
