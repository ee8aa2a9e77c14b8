"""A plan's data settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.data_sources import Source
from planc.data_sources.kinds import LabeledSource, MappedSource, MatchedSource, PairsSource, untransformed
from planc.vocab import ImageShape

Packing = Literal["attend", "isolate", "whole", "none"]
"""attend: documents share a sequence and see each other. isolate: they share it and do not. whole: as
isolate, and no document is split between sequences, which are padded. none: one document a sequence,
padded."""
TooLong = Literal["truncate", "skip"]
"""The treatment of documents that are longer than a sequence, where sequences hold whole documents."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The documents of a share by their hashes, a fraction: only those, or all others."""

    share: str
    is_kept: bool

    @property
    def text(self) -> str:
        """The text in fingerprints and recipes."""
        return f"{'only' if self.is_kept else 'without'} {self.share}"


@dataclass(frozen=True, slots=True)
class Masking:
    """The probability of a token to be hidden and learned, and what becomes of those that are."""

    probability: float
    mask_replace: float
    """The share that the mask token replaces."""
    random_replace: float
    """The share that other tokens replace. The rest stays as it is."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images of conversations: the token in whose place a sequence has theirs, and their shape.

    `path` is the directory of the preprocessor's settings, relative to the base directory.
    """

    path: str
    token: int
    shape: ImageShape


@dataclass(frozen=True, slots=True)
class DataSpec:
    """`tokenizer` is "bytes", or the path of a tokenizer's folder or file relative to the base directory.

    `end_of_document` names a token of it; None uses its own end of document. `begin_of_document` names one,
    or is "auto" for what the tokenizer itself puts before a text; None puts nothing there. `skip_bad` is how
    many bad documents may be left out.
    """

    source: Source
    tokenizer: str
    sequence_length: int
    shuffle_seed: int
    packing: Packing = "attend"
    end_of_document: str | None = None
    begin_of_document: str | None = None
    skip_bad: int = 0
    too_long: TooLong = "truncate"
    held_out: HeldOut | None = None
    masking: Masking | None = None
    """None for causal language models."""
    padding_id: int | None = None
    """The token after a document that fills no sequence; None for the end of a document."""
    token_types: int = 0
    """The number of `token_type_ids` that the model tells apart; 0 for one that takes none."""
    images: Images | None = None
    """None for data of text alone."""

    @property
    def has_classes(self) -> bool:
        """True if documents, or their words, have labels other than their tokens."""
        return self.has_targets or isinstance(untransformed(self.source), LabeledSource | MatchedSource)

    @property
    def has_targets(self) -> bool:
        """True if each two documents are an input and its target, the labels of one sequence."""
        return isinstance(self.source, MappedSource)

    @property
    def by_word(self) -> bool:
        """True if each word has a class."""
        source = untransformed(self.source)
        return isinstance(source, LabeledSource) and source.by_word

    @property
    def by_pair(self) -> bool:
        """True if two texts have a class together."""
        source = untransformed(self.source)
        return isinstance(source, LabeledSource) and source.pair is not None

    @property
    def room(self) -> int:
        """The most tokens of a document in a sequence: one is only a label, unless documents have classes."""
        return self.sequence_length + (not self.has_classes)

    @property
    def in_pairs(self) -> bool:
        """True if each two documents in a row are kept, held out and trained on together."""
        return isinstance(self.source, PairsSource | MatchedSource | MappedSource)
