"""The sample of the data that `planc check --data` reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planc.api import Checked
from planc.cli.support.libraries import require_libraries
from planc.diagnostics import Diagnostic, has_errors, in_order
from planc.runtime.data.errors import DataError
from planc.tables import Row


def read_data(path: str, checked: Checked, *, is_asked: bool) -> tuple[Checked, tuple[Row, ...]]:
    """The plan with what a sample of its data shows, and the rows that `check` prints about it.

    A plan with errors is returned unchanged, because it has no graph. If data was not asked for, missing
    files are not an error: they may be on the machines of the run. UsageError without a library.
    """
    if checked.graph is None:
        return checked, ()
    require_libraries("--data", "numpy")
    # Lazy: they import numpy.
    from planc.data_view.codes import UNUSABLE
    from planc.data_view.findings import findings
    from planc.data_view.parts import openings
    from planc.data_view.text import summary_row

    nowhere = checked.sources[path].start()
    found: list[Diagnostic] = []
    rows: list[Row] = []
    for span, opened in openings(checked.graph, base=Path(path).parent):
        try:
            part = opened()
        except DataError as error:
            if is_asked:
                found.append(UNUSABLE.at(span or nowhere, error.message, help=error.help))
            else:
                rows.append(("data", f"not read: {error.message}"))
            continue
        seen, more = findings(part, nowhere=nowhere)
        found += more
        if seen is not None:
            rows.append(summary_row(seen))
    diagnostics = in_order((*checked.diagnostics, *found))
    graph = None if has_errors(diagnostics) else checked.graph
    return replace(checked, diagnostics=diagnostics, graph=graph), tuple(rows)
