"""The calls of a module in one forward, and the memory that it takes for its backward. No torch here."""

from __future__ import annotations

from planc.record import record


@record
class Call:
    """A call of a module in one forward, and the rows of features that it takes.

    ProphetNet's layers take rows for each token's n-grams, Llama 4's experts one for each expert, and Zaya's
    delayed values one for a whole sequence.
    """

    rows_per_token: int = 1
    rows_per_sequence: int = 0
    without_gradients: bool = False
    """Its outputs need no gradient, or its code computes none: backward does not pass it."""
    is_constant: bool = False
    """Its hidden states follow from no parameter: backward ends there."""


ONCE = (Call(),)


@record
class Footprint:
    """Bytes that a function of one tensor takes for backward, for each of its elements.

    `kept` from forward to backward, but for its output, which its reader keeps; `passing` at most in addition
    to those while backward passes it, its output's and its input's gradients among them. Each where elements
    have two bytes, and where they have four.
    """

    kept: tuple[int, int]
    passing: tuple[int, int]


@record
class OwnCode:
    """Bytes that the own code of a layer, of a part of one or of a stem keeps for backward, without what
    linear layers, norms and dropout in it keep, and without the queries, keys and values of a fused kernel.
    A stem holds layers, which are not counted with it.

    `by_token` for each token; `by_pair` for each token and each position of its sequence, as scores have
    them. Each where elements have two bytes, and where they have four.
    """

    by_token: tuple[int, int] = (0, 0)
    by_pair: tuple[int, int] = (0, 0)


ONE_OPERATION = Footprint(kept=(2, 4), passing=(4, 8))
"""The footprint of a function such as silu, which keeps its input."""

RMS_NORM = Footprint(kept=(6, 8), passing=(18, 16))
"""The footprint of transformers' RMSNorm in most models, which squares in float32 and scales in the compute
dtype."""

NOTHING = Footprint(kept=(0, 0), passing=(0, 0))
"""The footprint of what is counted with the code around it."""
