"""The parts of a rank's share of an attention's heads: of projections, of arguments, and of counts."""

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


@record
class Packed:
    """A projection of an attention that holds several in sequence: their widths, in its output's order.

    `layer` is its path from the attention module.
    """

    layer: str
    widths: tuple[Size, ...]


@record
class PerHead:
    """An argument of an attention with a value for each head along `tensor_dim`.

    With `is_per_sample` that dimension holds the heads of one sample after the other.
    """

    argument: str
    tensor_dim: int
    is_per_sample: bool = False


@record
class KvProjection:
    """A layer of an attention that projects to keys, to values or to both.

    `layer` is its path from the attention module, `kv_widths` are the features of keys and values in its
    output's order. Before them it may hold the queries, with `query_width` features.
    """

    layer: str
    kv_widths: tuple[Size, ...]
    query_width: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of all that the layer holds, in its output's order."""
        return (self.query_width, *self.kv_widths) if self.query_width else self.kv_widths


@record
class SharedKv:
    """The changes by which an attention works where several ranks compute the same key/value head.

    Of its integer attributes, as paths from the attention module, a rank divides `counts` by the number of
    ranks, `group_counts` by the number of ranks that share a head, and `kv_counts` by the number of heads.
    """

    projections: tuple[KvProjection, ...]
    counts: tuple[str, ...] = ()
    group_counts: tuple[str, ...] = ()
    kv_counts: tuple[str, ...] = ()
