"""What a plan says about its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.runtime.data.chat import ChatSource
from planc.runtime.data.hf_datasets import HfDatasetSource, HfHubSource
from planc.runtime.data.sources import PlainSource

Source = PlainSource | ChatSource | HfDatasetSource | HfHubSource

Packing = Literal["attend", "isolate", "none"]
"""attend: documents share a sequence and see each other. isolate: they share it and do not. none: one
document a sequence, padded."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """`tokenizer` is "bytes", or the path of a tokenizer's folder or file relative to the base directory.

    `end_of_document` names a token of it; None takes its one well-known end of document.
    """

    source: Source
    tokenizer: str
    sequence_length: int
    shuffle_seed: int
    packing: Packing = "attend"
    end_of_document: str | None = None
