"""Pairs of texts in sequences that are shorter than both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from planc.runtime.data.errors import DataError


def places_of_pair(spans: Sequence[int], *, num_tokens: int, length: int) -> npt.NDArray[np.int64]:
    """The places of the tokens of two texts that fit into `length`, with all others around them.

    The longer text loses its end; if both are longer than half of the room, each gets a half, and the longer
    one, or else the second, the token more: the tokenizers library has this as "longest_first".
    DataError if `length` can't hold a token of each.
    """
    start, end, other_start, other_end = spans
    first, second = end - start, other_end - other_start
    if num_tokens > length:
        room = length - (num_tokens - first - second)
        if room < 2:
            raise DataError(
                f"a sequence of {length} has no room for two texts: {num_tokens - first - second} of its "
                "tokens are around them",
                help="raise sequence_length",
            )
        short = min(first, second, room // 2)
        first, second = (short, room - short) if first <= second else (room - short, short)
    kept = ((0, start + first), (end, other_start + second), (other_end, num_tokens))
    return np.concatenate([np.arange(*part) for part in kept])
