"""Counts of documents as they are tokenized: their lengths, their labels, and the longest of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from planc.runtime.data.packing import IGNORED_LABEL, Encoded

NUM_LONGEST = 5


@dataclass(slots=True)
class Tally:
    """Totals over documents, and the longest of them."""

    num_documents: int = 0
    num_tokens: int = 0
    num_targets: int = 0
    """Tokens that may be labels."""
    num_text_bytes: int = 0
    num_empty: int = 0
    """Documents without text."""
    num_unlabeled: int = 0
    """Documents without a token to train on."""
    lengths: Counter[int] = field(default_factory=Counter)
    """The number of documents of each length in tokens."""
    classes: Counter[int] = field(default_factory=Counter)
    """The number of documents, or of words, of each class."""
    longest: list[tuple[int, str]] = field(default_factory=list)
    """The longest documents by length and origin, the longest first."""

    def counted(self, documents: Iterable[Encoded]) -> Iterator[Encoded]:
        """The documents, which are counted."""
        for document in documents:
            self.add(document)
            yield document

    def add(self, document: Encoded) -> None:
        length = len(document)
        self.num_documents += 1
        self.num_tokens += length
        is_target = document.is_target
        if document.label is not None:
            self.classes[document.label] += 1
            is_target = np.array([document.label != IGNORED_LABEL])
        if document.classes is not None:
            is_target = document.classes != IGNORED_LABEL
            self.classes.update(document.classes[is_target].tolist())
        self.num_targets += length if is_target is None else int(np.count_nonzero(is_target))
        self.num_text_bytes += document.num_text_bytes
        self.num_empty += document.num_text_bytes == 0
        self.num_unlabeled += not document.has_labels
        self.lengths[length] += 1
        if len(self.longest) < NUM_LONGEST or length > self.longest[-1][0]:
            found = [*self.longest, (length, document.origin)]
            self.longest = heapq.nlargest(NUM_LONGEST, found, key=lambda one: one[0])

    def quantile(self, share: float) -> int:
        """The length that this share of the documents does not exceed."""
        wanted, seen = share * self.num_documents, 0
        for length, number in sorted(self.lengths.items()):
            seen += number
            if seen >= wanted:
                return length
        return 0

    def num_longer(self, length: int) -> int:
        """The number of documents of more tokens than `length`."""
        return sum(number for one, number in self.lengths.items() if one > length)
