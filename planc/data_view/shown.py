"""A row or a sequence as it is trained on: ids, text, labels, positions, and where documents start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from planc.data_sources.kinds import LabeledSource, untransformed
from planc.data_view.parts import Part
from planc.record import record
from planc.runtime.data.bad_documents import Faults
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.documents import is_held_out, source_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import micro_batch_of
from planc.runtime.data.open import OpenData
from planc.runtime.data.packing import IGNORED_LABEL, Encoded, encode
from planc.runtime.data.spec import DataSpec, Masking
from planc.runtime.data.tokenizers import Tokenizer
from planc.tables import plural

WHOLE = ("whole", "none")
"""Packings that divide no document: what is longer than a sequence is cut or left out."""


@record
class Run:
    """Tokens side by side that are all trained on, or none of them."""

    text: str
    is_trained: bool


@record
class Shown:
    """Tokens [n], with whether each is trained on and its position, and the places where documents start."""

    source: str
    ids: list[int]
    trained: list[bool]
    positions: list[int]
    document_starts: list[int]
    runs: tuple[Run, ...]
    tokens: tuple[str, ...]
    """The text of each token by itself."""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)

    def data(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return {
            "source": self.source,
            "text": self.text,
            "ids": self.ids,
            "tokens": list(self.tokens),
            "trained": self.trained,
            "positions": self.positions,
            "document_starts": self.document_starts,
            "notes": list(self.notes),
        }


def shown_documents(documents: Sequence[Encoded], *, spec: DataSpec, tokenizer: Tokenizer) -> list[Shown]:
    """Tokenized documents, each by itself, as far as a sequence holds them. Raises DataError."""
    parts = []
    for document in documents:
        notes, length, most = [], len(document), spec.room
        if document.spans:
            start, end, other_start, other_end = document.spans
            notes.append(f"pair: texts of {end - start:_} and {plural(other_end - other_start, 'token')}")
        if spec.packing in WHOLE and length > most:
            what = "skipped" if spec.too_long == "skip" else "truncated"
            notes.append(f"{what}: {plural(length, 'token')}, and a sequence holds {most:_}")
            length = most
            if spec.has_classes:
                kept = document.first(most, dtype=document.tokens.dtype, kept_at_end=len(tokenizer.after))
                document = replace(kept, origin=document.origin)
        ids = document.tokens[:length].tolist()
        trained = [True] * length if document.is_target is None else document.is_target[:length].tolist()
        if document.classes is not None:
            trained = (document.classes[:length] != IGNORED_LABEL).tolist()
            notes.append(_words(document.classes[:length].tolist(), spec))
        if spec.images is not None:
            shape = spec.images.shape
            notes.append(f"image: scaled to {shape}, {plural(shape.num_tokens, 'token')}")
        if document.types is not None and spec.token_types:
            notes.append(_types(document.types.tolist()))
        if document.label is not None:
            notes.append(_class(document.label, spec))
            trained = [spec.has_targets and document.label == IGNORED_LABEL] * length
        parts.append((document.origin, ids, trained, [*range(length)], [0], tuple(notes)))
    return list(_with_texts(parts, tokenizer, image=_image_token(spec)))


_PLACES = {0: "a query", IGNORED_LABEL: "the positive of the query before it"}
_PLACES_OF_TARGETS = {0: "an input", IGNORED_LABEL: "the target of the input before it"}


def _class(label: int, spec: DataSpec) -> str:
    """`class 1`, with the class's name if the plan has one; the place in a pair of texts."""
    if spec.has_targets:
        return _PLACES_OF_TARGETS[label]
    if spec.in_pairs:
        return _PLACES[label]
    source = untransformed(spec.source)
    names = source.names if isinstance(source, LabeledSource) else ()
    return f"class {label}, {names[label]}" if names else f"class {label}"


def _types(types: Sequence[int]) -> str:
    """`types: 0 of 8 tokens, 1 of 5 tokens`."""
    texts = (f"{kind} of {plural(len([*tokens]), 'token')}" for kind, tokens in groupby(types))
    return f"types: {', '.join(texts)}"


def _words(classes: Sequence[int], spec: DataSpec) -> str:
    """`words: 7 of class 0, O; 2 of class 1, PER`, the most frequent first."""
    counts = Counter(number for number in classes if number != IGNORED_LABEL)
    texts = (f"{times} of {_class(number, spec)}" for number, times in counts.most_common())
    return f"words: {'; '.join(texts)}"


def hidden_share(masking: Masking) -> str:
    """`15 % of tokens, chosen again each time a sequence is seen`."""
    return f"{100 * masking.probability:g} % of tokens, chosen again each time a sequence is seen"


_Parts = tuple[str, list[int], list[bool], list[int], list[int], tuple[str, ...]]


def _image_token(spec: DataSpec) -> int | None:
    return None if spec.images is None else spec.images.token


_IMAGE = "<image>"


def _with_texts(
    parts: Sequence[_Parts], tokenizer: Tokenizer, *, image: int | None = None
) -> Iterator[Shown]:
    """All texts are decoded together: each exchange with the tokenizer's process takes its time.

    All tokens `image` of one image are one text.
    """

    def kind(ids: list[int], trained: list[bool], at: int) -> tuple[bool, bool]:
        return trained[at], ids[at] == image

    pieces = [
        [
            (is_trained, [ids[at] for at in places][: 1 if is_image else None])
            for (is_trained, is_image), places in groupby(range(len(ids)), partial(kind, ids, trained))
        ]
        for _, ids, trained, *_ in parts
    ]
    distinct = sorted({one for _, ids, *_ in parts for one in ids})
    wanted = [*(ids for runs in pieces for _, ids in runs), *([token] for token in distinct)]
    known = iter(tokenizer.decode([ids for ids in wanted if ids != [image]]))
    texts = [_IMAGE if ids == [image] else next(known) for ids in wanted]
    by_id = dict(zip(distinct, texts[len(texts) - len(distinct) :], strict=True))
    decoded = iter(texts)
    for (source, ids, trained, positions, starts, notes), runs in zip(parts, pieces, strict=True):
        yield Shown(
            source, ids, trained, positions, starts,
            tuple(Run(next(decoded), is_trained) for is_trained, _ in runs),
            tuple(by_id[one] for one in ids),
            notes,
        )  # fmt: skip


def row_documents(part: Part, number: int) -> list[AnyDocument]:
    """The documents of a source's row, counted from 1: one, both of a pair, or several conversations.

    Rows that can't be used count too, and so do held-out ones. Raises DataError for a row that can't be used,
    or without such a row.
    """
    bad, seen, num_bad, last = Faults(), 0, 0, ""
    documents: list[AnyDocument] = []
    for document in source_documents(part.wanted.spec.source, base=part.wanted.base, bad=bad):
        while num_bad < len(bad.errors):
            seen, num_bad = seen + 1, num_bad + 1
            if seen == number:
                raise bad.errors[num_bad - 1]
        row = document.origin
        if part.wanted.spec.in_pairs:
            # `rows.jsonl:1 (query)`, and after it the other text of its row.
            row = row.rpartition(" (")[0]
        seen, last = seen + (row != last), row
        if seen > number:
            break
        if seen == number:
            documents.append(document)
    if documents:
        return documents
    if seen < number <= seen + len(bad.errors) - num_bad:
        raise bad.errors[num_bad + number - seen - 1]
    total = seen + len(bad.errors) - num_bad
    raise DataError(f"{part.label} has no row {number}", help=f"rows are counted from 1 to {total}")


def shown_row(part: Part, number: int, *, tokenizer: Tokenizer) -> list[Shown]:
    """A row's documents, as `row_documents`."""
    documents, held_out = row_documents(part, number), part.wanted.spec.held_out
    encoded = list(encode(documents, tokenizer=tokenizer, images=part.wanted.spec.images))
    shown = shown_documents(encoded, spec=part.wanted.spec, tokenizer=tokenizer)
    if held_out is None or is_held_out(documents[0], held_out) == held_out.is_kept:
        return shown
    note = "training has this row, and the evaluation does not" if held_out.is_kept else _HELD_OUT
    return [replace(each, notes=(note, *each.notes)) for each in shown]


_HELD_OUT = "held out: an evaluation has this row, and training does not"


def shown_sequence(data: OpenData, number: int, *, before: int, part: Part, tokenizer: Tokenizer) -> Shown:
    """A sequence of a part's data, counted from 1, as the run's loader gives it.

    Its tokens are the inputs, and the last label if there is one. `before` are the sequences of the sources
    before it in a mixture.
    """
    batch = micro_batch_of(data.dataset, np.array([number - 1]))
    name = f"sequence {before + number} of {part.label}, sample id {before + number - 1}"
    if part.wanted.spec.has_targets:
        length = int((batch.position_ids[0] == np.arange(batch.position_ids.shape[1])).sum())
        inputs, labels = batch.inputs[0, :length].tolist(), batch.labels[0].tolist()
        return _with_target(inputs, labels, name, tokenizer=tokenizer)
    shown = _sequence(
        batch.inputs[0].tolist(),
        batch.labels[0].tolist(),
        batch.position_ids[0].tolist(),
        name,
        part=part,
        end=data.end_of_document,
        tokenizer=tokenizer,
    )
    if batch.token_types is None:
        return shown
    return replace(shown, notes=(_types(batch.token_types[0].tolist()), *shown.notes))


def _with_target(inputs: list[int], labels: list[int], name: str, *, tokenizer: Tokenizer) -> Shown:
    """An input without its padding, and the tokens of its target, which alone are trained on."""
    target = [label for label in labels if label != IGNORED_LABEL]
    trained = [False] * len(inputs) + [True] * len(target)
    positions = [*range(len(inputs)), *range(len(target))]
    notes = (f"target: the last {plural(len(target), 'token')}",)
    parts = [(name, [*inputs, *target], trained, positions, [0, len(inputs)], notes)]
    return next(_with_texts(parts, tokenizer))


def _sequence(
    ids: list[int],
    labels: list[int],
    positions: list[int],
    name: str,
    *,
    part: Part,
    end: int,
    tokenizer: Tokenizer,
) -> Shown:
    masking = part.wanted.spec.masking
    trained = [masking is not None, *(label != IGNORED_LABEL for label in labels)]
    notes: tuple[str, ...] = () if masking is None else (f"hidden: {hidden_share(masking)}",)
    if part.wanted.spec.by_word:
        notes, trained = (_words(labels, part.wanted.spec),), [label != IGNORED_LABEL for label in labels]
        return next(_with_texts([(name, ids, trained, positions, [0], notes)], tokenizer))
    if part.wanted.spec.has_classes:
        notes, trained = (_class(labels[0], part.wanted.spec),), [False] * len(ids)
    if trained[-1] and masking is None:
        ids, positions = [*ids, labels[-1]], [*positions, positions[-1] + 1]
    trained = trained[: len(ids)]
    if part.wanted.spec.packing == "attend":
        # Positions continue: a document starts after the end of the one before it.
        starts = [0, *(at for at in range(1, len(ids)) if ids[at - 1] == end)]
    else:
        starts = [at for at, position in enumerate(positions) if position == 0]
    if (
        part.wanted.spec.packing == "whole"
        and {*ids[starts[-1] :]} == {end}
        and not any(trained[starts[-1] :])
    ):
        # What follows the last document.
        notes = (f"padding: {plural(len(ids) - starts.pop(), 'token')} at the end",)
    image = _image_token(part.wanted.spec)
    (shown,) = _with_texts([(name, ids, trained, positions, starts, notes)], tokenizer, image=image)
    return shown
