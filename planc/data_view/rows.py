"""Findings on rows of texts: what they hold that training does not use, or uses otherwise than is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.data_sources.kinds import LabeledSource, MatchedSource, untransformed
from planc.data_view.codes import QUESTIONABLE
from planc.data_view.look import Look
from planc.data_view.places import places
from planc.diagnostics import Diagnostic
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.sources import Document, TextPair
from planc.source import Span
from planc.tables import plural

_MAX_CLASSES = 5


def of_rows(seen: Look, span: Span) -> Iterator[Diagnostic]:
    """Warnings on the rows of a source of classes or of pairs of texts that belong together."""
    source = untransformed(seen.part.wanted.spec.source)
    if isinstance(source, LabeledSource):
        yield from _texts_unread(seen, source, span)
        yield from _halves_empty(seen, source, span)
        yield from _classes_unseen(seen, source, span)
    elif isinstance(source, MatchedSource):
        yield from _positives_repeated(seen, span)


def _texts_unread(seen: Look, source: LabeledSource, span: Span) -> Iterator[Diagnostic]:
    """A second text that the plan does not name: the model would learn the classes from the first alone."""
    if source.pair is not None:
        return
    for name in dict.fromkeys(name for row in _texts(seen) for name in row.unread):
        having = [row for row in _texts(seen) if name in row.unread]
        yield QUESTIONABLE.at(
            span,
            f'`"{name}"` of {_share(having, seen, "row")} is a text that is not trained on, as in '
            f"{places(seen, having)}",
            help=f'write `pair = "{name}"` in `labeled(...)` if the class is of both texts',
        )


def _halves_empty(seen: Look, source: LabeledSource, span: Span) -> Iterator[Diagnostic]:
    empty = [
        pair
        for pair in seen.documents
        if isinstance(pair, TextPair) and any(pair.texts) and not all(pair.texts)
    ]
    if empty:
        verb = "has" if len(empty) == 1 else "have"
        yield QUESTIONABLE.at(
            span,
            f"{_share(empty, seen, 'pair')} {verb} an empty text, as {places(seen, empty)}",
            help=f'remove the rows without "{source.field}" or "{source.pair}"',
        )


def _classes_unseen(seen: Look, source: LabeledSource, span: Span) -> Iterator[Diagnostic]:
    """Classes without a row, if all rows were read. An evaluation may lack some."""
    if seen.part.is_evaluation or not seen.sampling.is_whole or not seen.encoded or seen.faults:
        return
    unseen = [number for number in range(source.num_labels) if not seen.tally.classes[number]]
    if unseen:
        named = ", ".join(
            f"{n} ({source.names[n]})" if source.names else str(n) for n in unseen[:_MAX_CLASSES]
        )
        more = f" and {len(unseen) - _MAX_CLASSES} more" if len(unseen) > _MAX_CLASSES else ""
        word = "class" if len(unseen) == 1 else "classes"
        yield QUESTIONABLE.at(
            span,
            f"nothing is of {word} {named}{more}, of the {source.num_labels} that the task has",
            help="add rows of each class, or check `labels` of the task and the numbers in the rows",
        )


def _positives_repeated(seen: Look, span: Span) -> Iterator[Diagnostic]:
    """Positives that an earlier row has: in one group, each is a negative of the other's query."""
    known: set[str] = set()
    repeated, num_pairs = [], 0
    for text in _texts(seen):
        if text.label != IGNORED_LABEL:
            continue
        num_pairs += 1
        if text.text in known:
            repeated.append(text)
        known.add(text.text)
    if repeated:
        where = "" if seen.sampling.is_whole else " in the sample"
        verb = "has" if len(repeated) == 1 else "have"
        yield QUESTIONABLE.at(
            span,
            f"{len(repeated):_} of {plural(num_pairs, 'pair')}{where} {verb} the positive of an earlier row, "
            f"as {places(seen, repeated)}",
            help="leave out repeated rows: in one group, each positive is a negative of the other's query",
        )


def _class(number: int, source: LabeledSource) -> str:
    return f"{number} ({source.names[number]})" if source.names else str(number)


def _texts(seen: Look) -> list[Document]:
    return [document for document in seen.documents if isinstance(document, Document)]


def _share(rows: Sequence[AnyDocument], seen: Look, noun: str) -> str:
    """`3 of 400 rows in the sample`."""
    where = "" if seen.sampling.is_whole else " in the sample"
    return f"{len(rows):_} of {plural(len(seen.documents), noun)}{where}"
