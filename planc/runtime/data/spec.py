"""What a plan says about its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.runtime.data.sources import Source

Packing = Literal["attend"]
"""attend: documents share a sequence and attention sees across them."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """`tokenizer` is "bytes", or the path of a `tokenizer.json` relative to the base directory.

    `end_of_document` names a token of that file; None takes its one well-known end of document.
    """

    source: Source
    tokenizer: str
    sequence_length: int
    shuffle_seed: int
    packing: Packing = "attend"
    end_of_document: str | None = None
