"""Findings on a plan's data, by a sample of each part: each located in the plan and in the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from planc.data_sources.kinds import ChatSource, untransformed
from planc.data_view.codes import CHAT_ROW, QUESTIONABLE, UNUSABLE
from planc.data_view.look import Look, look
from planc.data_view.parts import Part
from planc.data_view.places import PLACE, located, places
from planc.data_view.rows import of_rows
from planc.diagnostics import Diagnostic
from planc.runtime.data.errors import ChatRowError, DataError
from planc.runtime.data.packing import Encoded
from planc.source import Span
from planc.tables import plural

_MAX_FAULTS = 10
_ROW = re.compile(r"\S+:\d+\b")


def findings(part: Part, *, nowhere: Span, known: set[str]) -> tuple[Look | None, list[Diagnostic]]:
    """A look at a part, and what is wrong with it. Without a line of the plan, findings are `nowhere`.

    Messages of rows in `known` are left out, and others added: an evaluation may read the rows of training.
    """
    span = part.span or nowhere
    try:
        seen = look(part)
    except DataError as error:
        return None, [UNUSABLE.at(span, error.message, help=error.help)]
    return seen, [
        *_faults(seen, span, known=known),
        *_of_all(seen, span),
        *_of_documents(seen, span),
        *_unread(seen, span),
        *of_rows(seen, span),
    ]


def _faults(seen: Look, span: Span, *, known: set[str]) -> Iterator[Diagnostic]:
    """The rows that can't be used: errors beyond `skip_bad`, one for all rows with the same fault."""
    base, allowed = seen.part.wanted.base, seen.part.wanted.spec.skip_bad
    by_fault: dict[str, list[DataError]] = {}
    for error in seen.faults:
        if error.message not in known:
            by_fault.setdefault(_ROW.sub("", PLACE.sub("", error.message)), []).append(error)
    known.update(error.message for error in seen.faults)
    if 0 < len(seen.faults) <= allowed and by_fault:
        first = next(iter(by_fault.values()))[0]
        message = located(first.message, base=base)
        what = f"{_rows(len(seen.faults))} left out by `skip_bad = {allowed}`: {message}"
        yield QUESTIONABLE.at(span, what, help=first.help)
        return
    faults = [*by_fault.values()]
    for first, *others in faults[:_MAX_FAULTS]:
        code = CHAT_ROW if isinstance(first, ChatRowError) else UNUSABLE
        message = located(first.message, base=base)
        if others:
            verb = "has" if len(others) == 1 else "have"
            message += f"; {plural(len(others), 'more row')} in the sample {verb} the same fault"
        yield code.at(span, message, help=first.help)
    if len(faults) > _MAX_FAULTS:
        yield UNUSABLE.at(
            span,
            f"{_rows(sum(map(len, faults[_MAX_FAULTS:])))} more in the sample can't be used",
            help="fix the rows, or set `skip_bad` to the number of rows that may be left out",
        )


def _of_all(seen: Look, span: Span) -> Iterator[Diagnostic]:
    """Report faults of the sample as a whole."""
    part, tally = seen.part, seen.tally
    spec = part.wanted.spec
    if not tally.num_documents:
        if not seen.faults:
            yield UNUSABLE.at(span, "the source has no documents", help="name files that hold text")
        return
    if tally.num_unlabeled == tally.num_documents:
        yield UNUSABLE.at(
            span,
            f"no document of the sample has a label, from {seen.encoded[0].origin} on",
            help="use a source with more text or answers in it",
        )
    elif seen.dataset is None and seen.sampling.is_whole:
        yield UNUSABLE.at(
            span,
            f"{plural(tally.num_tokens, 'token')} do not fill one sequence of {spec.sequence_length}",
            help="add text, or lower sequence_length: a sequence takes one more token, its last label",
        )
    source = untransformed(spec.source)
    is_masked = isinstance(source, ChatSource) and source.train_on != "all"
    never = [one for one in seen.encoded if one.has_labels and not one.stops]
    if never and not any(one.stops for one in seen.encoded):
        yield QUESTIONABLE.at(
            span,
            f"nothing teaches the model to end its turn: {seen.marks}",
            help="write `train_on_end_of_turn = true` in `chat(...)`",
        )
    if is_masked and tally.num_targets == tally.num_tokens:
        yield QUESTIONABLE.at(
            span,
            f"every token is trained on, though `train_on` is `{source.train_on}`",  # type: ignore[union-attr]
            help=f"look at a row: `planc data show PLAN --row 1`, from {seen.encoded[0].origin} on",
        )


def _of_documents(seen: Look, span: Span) -> Iterator[Diagnostic]:
    """Report faults of some documents of the sample."""
    spec, vocab_size = seen.part.wanted.spec, seen.part.vocab_size
    beyond = _those(seen, lambda one: len(one) > 0 and int(one.tokens.max()) >= vocab_size)
    if beyond:
        largest = max(int(one.tokens.max()) for one in beyond)
        yield UNUSABLE.at(
            span,
            f"token id {largest} is in {places(seen, beyond)}, but the model has {vocab_size} token ids",
            help="use the model's own tokenizer, or a model with a larger vocab_size",
        )
    if seen.num_too_long:
        most = spec.room
        what = "skipped" if spec.too_long == "skip" else "truncated"
        long = _those(seen, lambda one: len(one) > most)
        yield QUESTIONABLE.at(
            span,
            f"{_share(long, seen)} {what}: more than {most} tokens, as in {places(seen, long)}",
            help=f"raise sequence_length; the longest has {seen.tally.longest[0][0]} tokens",
        )
    checks: tuple[tuple[str, str, Callable[[Encoded], bool]], ...] = (
        ("empty", "remove the rows without text", lambda one: one.num_text_bytes == 0),
        (
            "without a token to train on",
            "check their answers, and what `train_on` selects",
            lambda one: not one.has_labels and one.num_text_bytes > 0,
        ),
        (
            "with the same special token twice at their beginning",
            "remove it from the text or the template: one of both writes it already",
            lambda one: (
                len(one) > 2
                and int(one.tokens[0]) == int(one.tokens[1])
                and int(one.tokens[0]) in seen.special_ids
                and not one.image_end
            ),
        ),
    )
    for what, help, is_found in checks:
        found = _those(seen, is_found)
        if found and not (what.startswith("without") and len(found) == len(seen.encoded)):
            yield QUESTIONABLE.at(span, f"{_share(found, seen)} {what}, as {places(seen, found)}", help=help)


def _unread(seen: Look, span: Span) -> Iterator[Diagnostic]:
    """The keys of rows that the chat template leaves out: transformers leaves them out as well."""
    names = dict.fromkeys(name for one in seen.encoded for name in one.unread.split(", ") if name)
    for name in names:
        found = _those(seen, lambda one, name=name: name in one.unread.split(", "))  # type: ignore[misc]
        yield QUESTIONABLE.at(
            span,
            f"the chat template does not read `{name}`, which {places(seen, found)} "
            f"{'has' if len(found) == 1 else 'have'}",
            help=f'use a template that does, or write `ignore = ["{name}"]` in `chat(...)`',
        )


def _those(seen: Look, is_found: Callable[[Encoded], bool]) -> list[Encoded]:
    return [one for one in seen.encoded if is_found(one)]


def _rows(number: int) -> str:
    return plural(number, "row")


def _share(encoded: Sequence[Encoded], seen: Look) -> str:
    """`3 of 400 documents in the sample are`."""
    verb = "is" if len(encoded) == 1 else "are"
    where = "" if seen.sampling.is_whole else " in the sample"
    return f"{len(encoded):_} of {plural(len(seen.encoded), 'document')}{where} {verb}"
