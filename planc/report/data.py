"""Rows, sequences and statistics of a plan's data on a page. Imports numpy."""

from __future__ import annotations

from collections.abc import Sequence

from planc.data_view.look import Look
from planc.data_view.shown import Run, Shown
from planc.data_view.text import HEADER, statistics, token_rows
from planc.report.html import Html, details, element, markup, paragraph, table
from planc.report.page import Section, page
from planc.tables import plural


def data_section(samples: Sequence[Look]) -> Html:
    """The statistics and the first rows of each source."""
    return markup(*(_sample(sample) for sample in samples))


def samples_page(title: str, samples: Sequence[Look]) -> str:
    """The page of `planc data show --html`."""
    sections = [
        Section(f"source-{number}", one.part.label, _sample(one)) for number, one in enumerate(samples)
    ]
    return page(title, heading=paragraph("Marked text is trained on."), sections=sections)


def shown_page(title: str, shown: Sequence[Shown]) -> str:
    """The page of rows or sequences, with all of their tokens."""
    sections = [
        Section(
            f"part-{number}",
            one.source,
            markup(_shown(one), details("Tokens", table([*token_rows(one)], header=HEADER), is_open=True)),
        )
        for number, one in enumerate(shown)
    ]
    return page(title, heading=paragraph("Marked text is trained on."), sections=sections)


def _sample(look: Look) -> Html:
    rows = (markup(element("h3", row.source), _shown(row)) for row in look.rows)
    return markup(
        element("h3", look.part.label),
        table([*statistics(look)], caption=f"Statistics of {look.part.label}"),
        paragraph(f"Read: {look.sampling}.", kind="note"),
        *rows,
    )


def _shown(shown: Shown) -> Html:
    notes = (paragraph(note, kind="note") for note in shown.notes)
    counts = f"{plural(len(shown.ids), 'token')}, {sum(shown.trained):_} trained on"
    return markup(paragraph(counts), *notes, element("pre", *map(_run, shown.runs), class_="text"))


def _run(run: Run) -> Html:
    """A run's text: line ends stay, and other control characters become visible."""
    first, *others = run.text.split("\n")
    text = markup(first, *(part for line in others for part in (Html("\n"), line)))
    return element("mark", text) if run.is_trained else text
