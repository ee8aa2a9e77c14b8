"""Documents to sequences of one length: end to end, or (`padding.py`) one per sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument, Conversation, TokenIds
from planc.runtime.data.columns import Array, Columns, MemoryColumns, Totals
from planc.runtime.data.encoding.client import Fault, Ids, Tokens
from planc.runtime.data.errors import DataError
from planc.runtime.data.images import IMAGE_HELP, image_fault, with_image
from planc.runtime.data.prepared.stored_array import STARTS_PER_SAMPLE, StoredArray, StoredStarts
from planc.runtime.data.sources import IGNORED_LABEL as IGNORED_LABEL
from planc.runtime.data.sources import Document, TextPair
from planc.runtime.data.spec import Images
from planc.runtime.data.starts import Positions, restarting, starts_within
from planc.runtime.data.text_pairs import places_of_pair
from planc.runtime.data.tokenizers import Tokenizer
from planc.tables import plural

Flags = npt.NDArray[np.bool_]
Stored = Array | StoredArray
"""An array in memory, or in files: both have a length, a maximum, and slices that are arrays."""

_FLAG, _BYTE, _CLASS, _POSITION = map(np.dtype, (np.bool_, np.uint8, np.int32, np.int64))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document's tokens with its end; `is_target` [tokens] marks those that may be labels; None for all."""

    tokens: Ids
    is_target: Flags | None
    num_text_bytes: int
    origin: str = ""
    """The document's place in the data, for messages."""
    unread: str = ""
    """The field of that name of its `Tokens`, and so is `stops`."""
    stops: bool = True
    label: int | None = None
    """The class of all of its tokens, if the source has one; then no token is a label."""
    classes: Ids | None = None
    """[tokens]: the classes of its tokens, or IGNORED_LABEL, if words have some; then no token is a label."""
    types: Ids | None = None
    """[tokens]: the types of its tokens, if it is two texts."""
    spans: Sequence[int] = ()
    """The start and the end of the first of two texts, and those of the second."""
    number: int = 0
    """Its place among the documents, those that can't be tokenized included."""
    image: bytes = b""
    """The content of the file of its image, if it has one."""
    image_end: int = 0
    """The tokens up to the last one of its image."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def has_labels(self) -> bool:
        """Whether the document has a class, or any token that is predicted: the first one never is."""
        if self.classes is not None:
            return bool((self.classes != IGNORED_LABEL).any())
        if self.label is not None:
            return True
        return len(self) > 1 if self.is_target is None else bool(self.is_target[1:].any())

    def first(self, length: int, *, dtype: np.dtype[np.generic], kept_at_end: int = 0) -> Encoded:
        """Its first tokens, up to `length` of them, or all but `kept_at_end` and its last ones, as they are
        stored. Two texts are shortened as `places_of_pair` has it."""
        is_target = None if self.is_target is None else self.is_target[:length]
        places = np.arange(min(len(self), length))
        if self.spans:
            places = places_of_pair(self.spans, num_tokens=len(self), length=length)
        elif kept_at_end and len(self) > length:
            places[-kept_at_end:] += len(self) - length
        classes, types = (None if values is None else values[places] for values in (self.classes, self.types))
        tokens = self.tokens[places].astype(dtype)
        return replace(self, tokens=tokens, is_target=is_target, classes=classes, types=types)


@dataclass(frozen=True, slots=True, eq=False)
class PackedDataset:
    """Tokens of all documents end to end, cut into sequences.

    Sequence i reads tokens [i*S, i*S + S] for S = `sequence_length`: adjacent sequences share one token, so
    every token but the first is a label once. The rest at the end is dropped. With `document_starts` (packing
    "isolate") no label is the first token of a document, and positions restart with each; without them
    ("attend") positions continue across documents.
    """

    tokens: Stored
    sequence_length: int
    num_documents: int
    num_text_bytes: int
    """Length of all documents in UTF-8."""
    document_starts: Positions | StoredStarts | None = None
    """Starts of documents in `tokens`, ascending."""
    is_target: Stored | None = None
    """The mask of tokens that may be labels; None for all."""

    @property
    def num_tokens(self) -> int:
        """All tokens, ends of documents and dropped ones included."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return (self.num_tokens - 1) // self.sequence_length

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens at the end that fill no sequence, fewer than `sequence_length`."""
        return self.num_tokens - (self.num_sequences * self.sequence_length + 1)

    @property
    def max_token_id(self) -> int:
        return int(self.tokens.max())

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(inputs [S], labels [S]) of sequence `index`; the label of a position is the token after it."""
        start = self._start(index)
        window = self.tokens[start : start + self.sequence_length + 1].astype(np.int64)
        inputs, labels = window[:-1], window[1:].copy()
        if self.is_target is not None:
            labels[~self.is_target[start + 1 : start + self.sequence_length + 1]] = IGNORED_LABEL
        if self.document_starts is not None:
            # Nothing is predicted across documents: no document determines which one comes next.
            labels[self._starts_within(start + 1) - (start + 1)] = IGNORED_LABEL
        return inputs, labels

    def position_ids(self, index: int) -> Positions:
        """[S]: positions in the sequence, or in the part of a document that it holds if they are isolated."""
        start = self._start(index)
        if self.document_starts is None:
            return np.arange(self.sequence_length, dtype=np.int64)
        return restarting(self._starts_within(start) - start, length=self.sequence_length)

    def token_types(self, index: int) -> None:
        """None: no sequence holds two texts."""

    def pixels(self, index: int) -> None:
        """None: no sequence has an image."""

    def summary(self) -> str:
        """One line for the log: the amount of data, and how much is unused."""
        return (
            f"{plural(self.num_documents, 'document')}, {plural(self.num_tokens, 'token')}, "
            f"{plural(self.num_sequences, 'sequence')}; {plural(self.num_dropped_tokens, 'token')} left over"
        )

    def digested(self) -> Iterator[tuple[str, Stored]]:
        """The arrays that determine inputs, labels and positions, by name; absent parts are left out."""
        yield "tokens", self.tokens
        if isinstance(self.document_starts, StoredStarts):
            yield "document_starts", self.document_starts.array
        elif self.document_starts is not None:
            yield "document_starts", self.document_starts
        if self.is_target is not None:
            yield "is_target", self.is_target

    def _start(self, index: int) -> int:
        if not 0 <= index < self.num_sequences:
            raise IndexError(f"sequence {index} of {self.num_sequences}")
        return index * self.sequence_length

    def _starts_within(self, first: int) -> Positions:
        """The document starts among the `sequence_length` tokens from `first` on."""
        assert self.document_starts is not None
        return starts_within(self.document_starts, first, first + self.sequence_length)


def pack(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    sequence_length: int,
    isolates: bool = False,
    bad: BadDocuments | None = None,
) -> PackedDataset:
    """The documents as sequences of `sequence_length` tokens, in memory.

    Raises DataError if not even one is full.
    """
    columns = MemoryColumns()
    totals = join(documents, tokenizer=tokenizer, columns=columns, bad=bad)
    arrays = columns.arrays()
    starts = arrays["document_starts"] if isolates else None
    return joined(arrays, totals=totals, sequence_length=sequence_length, document_starts=starts)


def join(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    columns: Columns,
    bad: BadDocuments | None = None,
) -> Totals:
    """Write the tokens of all documents end to end, with where each starts. Holds one batch at a time.

    The result depends neither on the sequence length nor on whether documents are isolated.
    """
    tokens, starts = TokenColumns(columns, dtype=stored_dtype(tokenizer)), StartColumns(columns)
    num_text_bytes = 0
    for encoded in encode(documents, tokenizer=tokenizer, bad=bad):
        starts.add(tokens.num_tokens)
        tokens.add(encoded)
        num_text_bytes += encoded.num_text_bytes
    return Totals(starts.num_documents, num_text_bytes)


class TokenColumns:
    """Writes the tokens of documents end to end."""

    def __init__(self, columns: Columns, *, dtype: np.dtype[np.generic]) -> None:
        self._columns = columns
        self._tokens = columns.column("tokens", dtype=dtype)
        self.num_tokens = 0

    def add(self, document: Encoded) -> None:
        self._tokens.append(document.tokens)
        if document.is_target is not None:
            # Either all documents of a source have flags, or none.
            self._columns.column("is_target", dtype=_FLAG).append(document.is_target)
        if document.classes is not None:
            self._columns.column("token_classes", dtype=_CLASS).append(document.classes)
        if document.types is not None:
            self._columns.column("token_types", dtype=_BYTE).append(document.types)
        self.num_tokens += len(document)


class StartColumns:
    """Writes where documents start, and of each STARTS_PER_SAMPLE of them the first once more."""

    def __init__(self, columns: Columns) -> None:
        self._starts = columns.column("document_starts", dtype=_POSITION)
        self._sampled = columns.column("sampled_starts", dtype=_POSITION)
        self.num_documents = 0

    def add(self, start: int) -> None:
        place = np.array([start], dtype=_POSITION)
        self._starts.append(place)
        if self.num_documents % STARTS_PER_SAMPLE == 0:
            self._sampled.append(place)
        self.num_documents += 1


def joined(
    arrays: Mapping[str, Stored],
    *,
    totals: Totals,
    sequence_length: int,
    document_starts: Positions | StoredStarts | None,
) -> PackedDataset:
    """The dataset of arrays that `join` has written. Raises DataError if not even one sequence is full."""
    require_length(sequence_length)
    dataset = PackedDataset(
        tokens=arrays["tokens"],
        sequence_length=sequence_length,
        num_documents=totals.num_documents,
        num_text_bytes=totals.num_text_bytes,
        document_starts=document_starts,
        is_target=arrays.get("is_target"),
    )
    _check_one_sequence(dataset)
    return dataset


def encode(
    documents: Iterable[AnyDocument],
    *,
    tokenizer: Tokenizer,
    bad: BadDocuments | None = None,
    images: Images | None = None,
) -> Iterator[Encoded]:
    """Each document's tokens and its end. Raises DataError for one that can't be tokenized, beyond `bad`.

    A conversation's template writes its own ends: an end that is there already is not repeated, and an end
    that planc adds is not a target. After a completion it is one, because nothing else ends that, and after
    an answer whose turn nothing ends, if the plan trains on ends of turn. A text with a class ends as the
    tokenizer itself ends texts, and a target then by the end of a document. In the place of the token of
    `images` are all tokens of the document's image; without one, they precede the text.
    """
    end, bad = tokenizer.end_of_document, bad or BadDocuments()
    ahead = _Ahead(documents, bad)
    for number, tokens in enumerate(_tokens(ahead, tokenizer)):
        origin, label, ends, (image, leads) = ahead.origins.popleft()
        if isinstance(tokens, Fault):
            bad.add(DataError(f"{origin} {tokens.reason}", help=tokens.help), number=number)
            continue
        ids, is_target, classes = tokens.ids, tokens.is_target, tokens.classes
        if label is not None or classes is not None:
            if tokens.types is None:
                ids = np.append(ids, np.array(tokenizer.after, dtype=np.int64))
            if classes is not None:
                classes = np.append(classes, np.full(len(tokenizer.after), IGNORED_LABEL))
            if ends and (not len(ids) or ids[-1] != end):
                ids = np.append(ids, end)
            if not len(ids):
                bad.add(DataError(f"{origin} has no tokens", help="write a text"), number=number)
                continue
        elif is_target is None:
            ids = np.append(ids, end)
        elif not len(ids) or ids[-1] != end:
            ids, is_target = np.append(ids, end), np.append(is_target, tokens.trains_end)
        image_end = 0
        if images is not None and is_target is not None:
            if (fault := image_fault(ids, images, leads=leads)) is not None:
                bad.add(DataError(f"{origin} {fault}", help=IMAGE_HELP), number=number)
                continue
            ids, is_target, image_end = with_image(ids, is_target, images)
        of_text = tokens.num_text_bytes, origin, tokens.unread, tokens.stops
        of_image = image, image_end
        yield Encoded(ids, is_target, *of_text, label, classes, tokens.types, tokens.spans, number, *of_image)
    if ahead.error is not None:
        raise ahead.error


def _tokens(documents: Iterable[AnyDocument], tokenizer: Tokenizer) -> Iterator[Tokens | Fault]:
    """The tokens of each document: all of a source are tokenized already, or none.

    Those that are get the end of a document only if they have none yet.
    """
    ahead = iter(documents)
    first = next(ahead, None)
    rest = ahead if first is None else chain((first,), ahead)
    if not isinstance(first, TokenIds):
        yield from tokenizer.encode(rest)
        return
    end, vocab_size = tokenizer.end_of_document, tokenizer.vocab_size
    for document in rest:
        assert isinstance(document, TokenIds), "a source has documents of document kind"
        largest = int(document.ids.max(initial=0))
        if largest >= vocab_size:
            yield Fault(f"has the token id {largest}", f"ids of the tokenizer are below {vocab_size}")
            continue
        has_end = document.is_target is None and len(document.ids) > 0 and document.ids[-1] == end
        ids = document.ids[:-1] if has_end else document.ids
        yield Tokens(ids, document.is_target, document.num_bytes, trains_end=False)


@dataclass(slots=True)
class _Ahead:
    """Documents that are read before those ahead of them are tokenized.

    An error of the source ends them, and waits for those: the first fault is reported, however many are read.
    """

    documents: Iterable[AnyDocument]
    bad: BadDocuments
    origins: deque[tuple[str, int | None, bool, tuple[bytes, bool]]] = field(default_factory=deque)
    """Their places in the data, their classes, and whether they end though they have one."""
    error: DataError | None = None

    def __iter__(self) -> Iterator[AnyDocument]:
        try:
            for document in self.documents:
                self.bad.num_read += 1
                label = document.label if isinstance(document, Document | TextPair) else None
                ends = isinstance(document, Document) and document.ends
                talk = document if isinstance(document, Conversation) else None
                image = (talk.image, talk.image_leads) if talk else (b"", False)
                self.origins.append((document.origin, label, ends, image))
                yield document
        except DataError as error:
            self.error = error


def stored_dtype(tokenizer: Tokenizer) -> np.dtype[np.generic]:
    """The smallest dtype that holds every id."""
    return np.dtype(np.min_scalar_type(tokenizer.vocab_size - 1))


def require_length(sequence_length: int) -> None:
    """DataError unless a sequence has at least one token."""
    if sequence_length < 1:
        raise DataError(f"sequence_length is {sequence_length}", help="set sequence_length to 1 or more")


def _check_one_sequence(dataset: PackedDataset) -> None:
    if dataset.num_documents == 0:
        raise DataError("the source has no documents", help="use a source that holds text")
    if dataset.num_sequences < 1:
        few = "1 token does" if dataset.num_tokens == 1 else f"{dataset.num_tokens} tokens do"
        raise DataError(
            f"{few} not fill one sequence of {dataset.sequence_length}",
            help="add text, or lower sequence_length: a sequence takes one more token, its last label",
        )
    if dataset.is_target is not None and not dataset.is_target.max():
        raise DataError("the data has no tokens to train on", help="use a source with answers in it")
