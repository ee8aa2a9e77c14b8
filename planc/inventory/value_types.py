"""Types of values in an inventory that say more than Python's own: what a file must hold for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from planc.record import record


@record
class Must:
    """A condition on a value in addition to its type, and the message for one that does not meet it."""

    holds: Callable[[Any], object]
    message: str


class Named:
    """Marks pairs of a name and a value, which JSON has as an object."""


Size = Annotated[int, Must(lambda value: value > 0, "not a positive whole number")]
Probability = Annotated[float, Must(lambda value: 0 < value <= 1, "not a probability")]
Digest = Annotated[str, Must(re.compile(r"[0-9a-f]{64}").fullmatch, "not a SHA-256 in hexadecimal")]
