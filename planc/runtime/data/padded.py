"""Sequences of whole documents, each with the padding after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planc.runtime.data.columns import Totals
from planc.runtime.data.images import Preprocessor
from planc.runtime.data.packing import IGNORED_LABEL, Stored
from planc.runtime.data.prepared.stored_array import StoredStarts
from planc.runtime.data.starts import Positions, restarting, starts_within
from planc.tables import plural


@dataclass(frozen=True, slots=True, eq=False)
class PaddedDataset:
    """Sequences of whole documents: one each (packing "none"), or several with `document_starts` ("whole").

    Attention is causal, so padding after the documents does not change them, and needs no mask.
    """

    tokens: Stored
    """The tokens of all documents that are kept, end to end."""
    starts: Stored
    """[num_sequences + 1]: sequence i holds tokens [starts[i], starts[i + 1])."""
    sequence_length: int
    padding_id: int
    totals: Totals
    """All documents that were read, and those that were shortened or left out."""
    document_starts: Positions | StoredStarts | None = None
    """Starts of documents in `tokens`, ascending; None for one in each sequence."""
    is_target: Stored | None = None
    """The mask of tokens that may be labels; None for all."""

    @property
    def num_documents(self) -> int:
        return self.totals.num_documents

    @property
    def num_text_bytes(self) -> int:
        return self.totals.num_text_bytes

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens cut off long documents, and those of documents that are left out."""
        return self.totals.num_dropped_tokens

    @property
    def num_tokens(self) -> int:
        """All tokens that are kept, without padding."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.starts) - 1

    @property
    def num_padding_tokens(self) -> int:
        """Positions of all sequences after which no document has a token."""
        return self.num_sequences * self.sequence_length - (self.num_tokens - self.num_sequences)

    @property
    def max_token_id(self) -> int:
        return max(int(self.tokens.max()), self.padding_id)

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`; the label of a position is the token after it."""
        start, stop = self._bounds(index)
        row = self.tokens[start:stop]
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        held, num_labels = min(len(row), self.sequence_length), len(row) - 1
        inputs[:held] = row[:held]
        labels[:num_labels] = row[1:]
        if self.is_target is not None:
            labels[:num_labels][~self.is_target[start + 1 : stop]] = IGNORED_LABEL
        if self.document_starts is not None:
            # Nothing is predicted across documents: no document determines which one comes next.
            labels[starts_within(self.document_starts, start + 1, stop) - (start + 1)] = IGNORED_LABEL
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: positions in the sequence, or in each of its documents; padding is then one more of them."""
        if self.document_starts is None:
            return np.arange(self.sequence_length, dtype=np.int64)
        start, stop = self._bounds(index)
        ends = [stop - start] if stop - start < self.sequence_length else []
        starts = np.append(starts_within(self.document_starts, start, stop) - start, ends).astype(np.int64)
        return restarting(starts, length=self.sequence_length)

    def token_types(self, index: int) -> Positions | None:
        """[S]: the types of the tokens of two texts, and 0 for padding; None for sequences of other kinds."""
        return None

    def pixels(self, index: int) -> npt.NDArray[np.float32] | None:
        """[patches, values]: the values of a sequence's image; None for sequences of other kinds."""
        return None

    def summary(self) -> str:
        """One line for the log: the amount of data, and how much is unused."""
        totals = self.totals
        counts = {
            "truncated": totals.num_truncated,
            "skipped as too long": totals.num_too_long,
            "without a label": totals.num_unlabeled,
            "left out with the other of their pair": totals.num_left_by_pairs,
        }
        why = ", ".join(f"{plural(number, 'document')} {what}" for what, number in counts.items() if number)
        equal = totals.num_equal_pairs
        same = f", {plural(equal, 'pair')} of equal answers, which teach nothing" if equal else ""
        return (
            f"{plural(self.num_documents, 'document')}, {plural(self.num_tokens, 'token')}, "
            f"{plural(self.num_sequences, 'sequence')}; {plural(self.num_dropped_tokens, 'token')} dropped"
            f"{f' ({why})' if why else ''}, {plural(self.num_padding_tokens, 'token')} of padding{same}"
        )

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs, labels and positions, by name; absent parts are left out."""
        yield "tokens", self.tokens
        yield "starts", self.starts
        if isinstance(self.document_starts, StoredStarts):
            yield "document_starts", self.document_starts.array
        elif self.document_starts is not None:
            yield "document_starts", self.document_starts
        if self.is_target is not None:
            yield "is_target", self.is_target

    def _bounds(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start, stop = (int(place) for place in self.starts[index : index + 2])
        return start, stop


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LabeledDataset(PaddedDataset):
    """Sequences of one text each, with its class as the only label, at the first position. Of pairs that
    belong together each query has class 0, and its positive no label."""

    classes: Stored
    """[num_sequences]"""
    types: Stored | None = None
    """[tokens]: the types of tokens that the model is given with pairs of texts."""

    @property
    def num_padding_tokens(self) -> int:
        return self.num_sequences * self.sequence_length - self.num_tokens

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`."""
        start, stop = self._bounds(index)
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        inputs[: stop - start] = self.tokens[start:stop]
        known = self.classes_of(index)
        labels[: len(known)] = known
        return inputs, labels

    def token_types(self, index: int) -> Positions | None:
        """[S]"""
        if self.types is None:
            return None
        start, stop = self._bounds(index)
        types = np.zeros(self.sequence_length, dtype=np.int64)
        types[: stop - start] = self.types[start:stop]
        return types

    def classes_of(self, index: int) -> npt.NDArray[np.int64]:
        """The labels of a sequence from its first position on: [1], the class of its text."""
        return self.classes[index : index + 1].astype(np.int64)

    def position_ids(self, index: int) -> Positions:
        """[S]: padding has positions of its own, as one more document: no token sees it."""
        start, stop = self._bounds(index)
        return _positions_of_text(stop - start, length=self.sequence_length)

    def summary(self) -> str:
        """One line for the log, with the classes."""
        text = PaddedDataset.summary(self)
        if IGNORED_LABEL in self.classes[:2]:
            return f"{text}; {plural(self.num_sequences // 2, 'pair')}"
        return f"{text}; classes up to {int(self.classes.max())}"

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs and classes, by name."""
        yield "tokens", self.tokens
        yield "starts", self.starts
        yield "classes", self.classes
        if self.types is not None:
            yield "types", self.types


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordsDataset(LabeledDataset):
    """Sequences of one text each, with the class of each word as the label of its first token.

    `classes` are [tokens], IGNORED_LABEL where no word begins.
    """

    def classes_of(self, index: int) -> npt.NDArray[np.int64]:
        """The labels of a sequence's tokens."""
        start, stop = self._bounds(index)
        return self.classes[start:stop].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MappedDataset(PaddedDataset):
    """Sequences of one input each, whose labels are the tokens of its target.

    `starts` are [2 * num_sequences + 1]: of each sequence the input, then the target.
    """

    @property
    def num_sequences(self) -> int:
        return (len(self.starts) - 1) // 2

    @property
    def num_padding_tokens(self) -> int:
        return 2 * self.num_sequences * self.sequence_length - self.num_tokens

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`."""
        (start, stop), (first, last) = self._bounds(index), self._bounds_of_target(index)
        inputs = np.full(self.sequence_length, self.padding_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        inputs[: stop - start] = self.tokens[start:stop]
        labels[: last - first] = self.tokens[first:last]
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: padding of the input has positions of its own, as one more document."""
        start, stop = self._bounds(index)
        return _positions_of_text(stop - start, length=self.sequence_length)

    def _bounds(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        start, stop = (int(place) for place in self.starts[2 * index : 2 * index + 2])
        return start, stop

    def _bounds_of_target(self, index: int) -> tuple[int, int]:
        first, last = (int(place) for place in self.starts[2 * index + 1 : 2 * index + 3])
        return first, last


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ImageDataset(PaddedDataset):
    """Sequences of one conversation each, with the image that it has."""

    images: Stored
    """The content of all images' files, end to end."""
    image_starts: Stored
    """[num_sequences + 1]: sequence i has bytes [image_starts[i], image_starts[i + 1]) of them."""
    preprocessor: Preprocessor | None = None
    """The way from a file to the encoder's values, once data is opened to be trained on."""

    def image(self, index: int) -> bytes:
        """The content of the file of a sequence's image."""
        start, stop = (int(place) for place in self.image_starts[index : index + 2])
        return self.images[start:stop].tobytes()

    def pixels(self, index: int) -> npt.NDArray[np.float32]:
        """[patches, values of each]"""
        assert self.preprocessor is not None, "data that is opened has one"
        return self.preprocessor.patches(self.image(index), name=f"the image of sequence {index}")

    def summary(self) -> str:
        """One line for the log, with the images."""
        return f"{PaddedDataset.summary(self)}; {plural(self.num_sequences, 'image')}"

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs, labels and images, by name."""
        yield from PaddedDataset.digested(self)
        yield "images", self.images
        yield "image_starts", self.image_starts


def _positions_of_text(num_tokens: int, *, length: int) -> Positions:
    """[length]: the positions of a text's tokens, then of the padding after it."""
    ends = [num_tokens] if num_tokens < length else []
    return restarting(np.array([0, *ends], dtype=np.int64), length=length)
