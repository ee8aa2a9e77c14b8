"""The texts of a step's samples, cut from the stream itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from planc.runtime.data.open import OpenData
from planc.runtime.data.packing import PackedDataset
from planc.runtime.data.padded import PaddedDataset
from planc.runtime.data.spec import DataSpec


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of which each but the first is a label."""

    tokens: Tensor
    sequence: int
    """The number of its sequence in the step."""
    sample_id: int
    """The number of its sequence in the data."""
    start: int
    """The place of its first token in the sequence."""


def texts_of(data: OpenData, sample_ids: np.ndarray, spec: DataSpec) -> list[Text]:
    """The texts of samples: each sequence with the token after it, and if documents are isolated, each of its
    documents alone."""
    length, dataset = spec.sequence_length, data.dataset
    pieces: list[np.ndarray]
    if isinstance(dataset, PaddedDataset):
        pieces = [dataset.tokens[dataset.starts[i] : dataset.starts[i + 1]] for i in sample_ids]
    else:
        assert isinstance(dataset, PackedDataset)
        pieces = [dataset.tokens[i * length : i * length + length + 1] for i in sample_ids]
    parts = [[piece] for piece in pieces]
    if spec.packing in ("isolate", "whole"):
        ends = [np.flatnonzero(piece == data.end_of_document) + 1 for piece in pieces]
        parts = [np.split(piece, at) for piece, at in zip(pieces, ends, strict=True)]
    texts = []
    for sequence, of_sequence in enumerate(parts):
        start = 0
        for part in of_sequence:
            # A text of one token has no prediction.
            if len(part) > 1:
                tokens = torch.from_numpy(part.astype(np.int64))
                texts.append(Text(tokens, sequence, int(sample_ids[sequence]), start))
            start += len(part)
    return texts
