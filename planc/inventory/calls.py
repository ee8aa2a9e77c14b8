"""The calls of a module in one forward. No torch here."""

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
