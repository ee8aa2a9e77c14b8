"""Rows, sequences and statistics as text: what is trained on is colored, or in brackets without colors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.data_view.look import QUANTILES, Look
from planc.data_view.shown import Run, Shown, hidden_share
from planc.outgoing import harmless
from planc.runtime.data.summary import summary_of
from planc.tables import Row, plural, render_table

_MAX_CHARACTERS = 1_200
_TRAINED, _OPEN, _CLOSE = "\033[32m", "[", "]"


def shown_text(shown: Shown, *, is_colored: bool, is_whole: bool) -> str:
    """One row or sequence: a heading, its text, and with `is_whole` each token in a table."""
    num_trained = sum(shown.trained)
    counts = f"{plural(len(shown.ids), 'token')}, {num_trained:_} trained on"
    lines = [f"{shown.source}: {counts}", *(f"  {note}" for note in shown.notes)]
    lines.append(_runs(shown.runs, is_colored=is_colored, most=None if is_whole else _MAX_CHARACTERS))
    if is_whole:
        lines += ["", render_table(list(token_rows(shown)), header=HEADER, right=(0, 1))]
    return "\n".join(lines)


HEADER = ("position", "id", "trained on", "token")


def token_rows(shown: Shown) -> Iterator[tuple[str, ...]]:
    starts = set(shown.document_starts)
    rows = zip(shown.positions, shown.ids, shown.trained, shown.tokens, strict=True)
    for at, (position, one, is_trained, token) in enumerate(rows):
        border = "  document starts" if at in starts else ""
        yield str(position), str(one), "yes" if is_trained else "no", f"{harmless(repr(token))}{border}"


def _runs(runs: tuple[Run, ...], *, is_colored: bool, most: int | None) -> str:
    """The text, cut to `most` characters. The data's own control characters are escaped before any color."""
    parts, num = [], 0
    for run in runs:
        text = run.text if most is None else run.text[: most - num]
        num += len(text)
        text = harmless(text)
        if run.is_trained and text:
            text = _colored(text) if is_colored else f"{_OPEN}{text}{_CLOSE}"
        parts.append(text)
    total = sum(len(run.text) for run in runs)
    more = f" ... ({total - num:_} more characters)" if num < total else ""
    return "".join(parts) + more


def _colored(text: str) -> str:
    # Each line by itself, so a pager that cuts lines keeps the color.
    return "\n".join(f"{_TRAINED}{line}\033[0m" if line else "" for line in text.split("\n"))


def look_text(look: Look, *, is_colored: bool) -> str:
    """The first rows of a sample, then its statistics."""
    rows = [shown_text(row, is_colored=is_colored, is_whole=False) for row in look.rows]
    key = "green is trained on" if is_colored else "[...] is trained on"
    heading = f"{look.part.label}: {look.sampling}; {key}"
    table = render_table(list(statistics(look)), indent="  ")
    return "\n\n".join([heading, *rows, f"statistics of {look.sampling}\n{table}"])


def statistics(look: Look) -> Iterator[Row]:
    """The figures of a sample, by name."""
    tally, spec = look.tally, look.part.wanted.spec
    yield "documents", f"{tally.num_documents:_}, {plural(tally.num_tokens, 'token')}"
    unusable = len(look.faults), look.faults[0].message if look.faults else ""
    if not tally.num_documents:
        yield from _counted(look, {"unusable": unusable})
        return
    yield "lengths", ", ".join(f"{name} {tally.quantile(share):_}" for name, share in QUANTILES.items())
    if tally.classes and spec.in_pairs:
        yield "pairs", f"{tally.num_targets:_}"
    elif tally.classes:
        yield "classes", ", ".join(f"{label}: {number:_}" for label, number in sorted(tally.classes.items()))
    elif look.dataset is None or not look.sampling.is_whole:
        yield "labels", f"{100 * tally.num_targets / max(1, tally.num_tokens):.1f} % of tokens"
    if spec.masking is not None:
        yield "hidden", hidden_share(spec.masking)
    if look.marks or not tally.classes:
        yield "end", harmless(look.marks or f"a document ends with {look.end_of_document!r}")
    limit = f"more than {spec.room:_} tokens"
    counts = {
        ("skipped" if spec.too_long == "skip" else "truncated"): (look.num_too_long, limit),
        "without a label": (tally.num_unlabeled, ""),
        "empty": (tally.num_empty, ""),
        "unusable": unusable,
    }
    yield from _counted(look, counts)
    sequences = look.sequences_per_epoch
    if look.dataset is not None and look.sampling.is_whole:
        yield "trained on", summary_of(look.dataset)
    elif sequences is not None:
        yield "sequences", f"about {sequences:_} per epoch, of {plural(spec.sequence_length, 'token')}"
    for number, (length, origin) in enumerate(tally.longest):
        yield "longest" if number == 0 else "", f"{origin}: {plural(length, 'token')}"


def _counted(look: Look, counts: Mapping[str, tuple[int, str]]) -> Iterator[Row]:
    """A row for each number of documents above 0, with what they have."""
    total = max(1, look.tally.num_documents + len(look.faults))
    for name, (number, what) in counts.items():
        if number:
            share = f"{100 * number / total:.1f} %"
            yield name, f"{plural(number, 'document')}, {share}{f': {what}' if what else ''}"


def summary_row(look: Look) -> Row:
    """One line: how much was read, and what it holds."""
    if look.dataset is not None and look.sampling.is_whole:
        return f"{look.part.label} data", summary_of(look.dataset)
    tally = look.tally
    labels = f"{100 * tally.num_targets / max(1, tally.num_tokens):.1f} % labels"
    if (masking := look.part.wanted.spec.masking) is not None:
        labels = f"{100 * masking.probability:g} % of tokens hidden"
    if tally.classes and look.part.wanted.spec.in_pairs:
        labels = plural(tally.num_targets, "pair")
    elif tally.classes:
        labels = plural(len(tally.classes), "class", "classes")
    figures = [plural(tally.num_documents, "document"), plural(tally.num_tokens, "token"), labels]
    sequences = look.sequences_per_epoch
    if sequences is not None:
        figures.append(f"about {plural(sequences, 'sequence')} per epoch")
    return f"{look.part.label} data", f"{', '.join(figures)}; read: {look.sampling}"
