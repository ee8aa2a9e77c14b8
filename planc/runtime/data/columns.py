"""Growing arrays that tokens are written to: in memory here, in files in `prepared/shards.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Column(Protocol):
    """One growing array."""

    def append(self, values: Array) -> None: ...


class Columns(Protocol):
    """Growing arrays by name. A column that is never asked for is absent from the data."""

    def column(self, name: str, *, dtype: np.dtype[Any]) -> Column: ...


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a source's documents. `num_dropped_tokens` are those that were not written."""

    num_documents: int
    num_text_bytes: int
    """Length of all documents in UTF-8."""
    num_dropped_tokens: int = 0
    num_truncated: int = 0
    """Documents of which a sequence holds the beginning."""
    num_too_long: int = 0
    """Documents that were skipped because they are longer than a sequence."""
    num_unlabeled: int = 0
    """Documents that were skipped because no token that a sequence holds is a label."""
    num_left_by_pairs: int = 0
    """Documents that were skipped because the other one of their pair was."""
    num_equal_pairs: int = 0
    """Pairs of equal documents, which teach nothing."""


@dataclass(slots=True)
class MemoryColumn:
    """One growing buffer: joining a list of arrays would hold everything twice."""

    dtype: np.dtype[Any]
    content: bytearray = field(default_factory=bytearray)

    def append(self, values: Array) -> None:
        self.content += values.astype(self.dtype).tobytes()


@dataclass(slots=True)
class MemoryColumns:
    """Columns that stay in memory."""

    columns: dict[str, MemoryColumn] = field(default_factory=dict)

    def column(self, name: str, *, dtype: np.dtype[Any]) -> MemoryColumn:
        return self.columns.setdefault(name, MemoryColumn(dtype))

    def arrays(self) -> Mapping[str, Array]:
        """The finished arrays, which share the columns' buffers."""
        return {name: np.frombuffer(one.content, dtype=one.dtype) for name, one in self.columns.items()}
