"""Reads of `planc check` beyond the plan: a sample of the data, and the rehearsal of --deep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from planc.api import Checked
from planc.checks.run import does_not_fit, expectation_broken
from planc.cli.support.exits import UsageError, require_libraries
from planc.cli.support.spinner import spinner
from planc.deep_check.check import Deep, check_deep, own_code
from planc.deep_check.summary import rehearsed_rows
from planc.devices.hardware import Demand
from planc.diagnostics import Diagnostic, Severity, has_errors, in_order
from planc.hub.user_dirs import cache_dir
from planc.plan.elastic_meshes import shrinking_note
from planc.runtime.data.errors import DataError
from planc.runtime.errors import RunError
from planc.tables import Row


def rehearse(
    path: str, checked: Checked, *, stream: TextIO, runs_extensions: bool = False
) -> tuple[Checked, tuple[Row, ...]]:
    """The plan with the rehearsal's findings added, and the rows that `check` prints about it.

    Of a plan with code of its own, the finding that it would run, unless `runs_extensions` permits it.

    A terminal as `stream` shows progress. A plan with errors is returned unchanged, because it has no graph.
    UsageError if torch or transformers is missing, or the model can't be built.
    """
    refused = () if runs_extensions else _own_code(path, checked)
    if refused:
        return replace(checked, diagnostics=in_order((*checked.diagnostics, *refused)), graph=None), ()
    deep = rehearsal(path, checked, stream=stream, runs_extensions=runs_extensions)
    if deep is None or checked.graph is None:
        return checked, ()
    return with_findings(checked, deep), tuple(rehearsed_rows(deep, graph=checked.graph))


def _own_code(path: str, checked: Checked) -> tuple[Diagnostic, ...]:
    return () if checked.graph is None else own_code(checked.graph, nowhere=checked.sources[path].start())


def rehearsal(path: str, checked: Checked, *, stream: TextIO, runs_extensions: bool = False) -> Deep | None:
    """The rehearsal of a plan; None for a plan with errors. Otherwise, as `rehearse`.

    UsageError for code of the plan's own without `runs_extensions`.
    """
    require_libraries("--deep", "torch", "transformers")
    if not runs_extensions and (refused := _own_code(path, checked)):
        raise UsageError(f"{refused[0].primary.text}, which a rehearsal runs: {refused[0].help}")
    if checked.graph is None or checked.draft is None:
        return None
    source = checked.sources[path]
    try:
        with progress(path, stream=stream) as show_progress:
            return check_deep(
                checked.graph,
                base=Path(path).parent,
                estimate=checked.draft.estimate,
                cache_dir=cache_dir(),
                nowhere=source.start(),
                said=show_progress,
            )
    except RunError as error:
        raise UsageError(error.message) from error


def with_findings(checked: Checked, deep: Deep) -> Checked:
    """The plan with a rehearsal's findings added."""
    diagnostics = in_order((*checked.diagnostics, *deep.diagnostics, *_judged(checked, deep)))
    graph = None if has_errors(diagnostics) else checked.graph
    return replace(checked, diagnostics=diagnostics, graph=graph)


def with_smaller(checked: Checked, smaller: Iterable[Checked]) -> Checked:
    """An elastic plan with the rehearsal's findings on its smaller meshes, each once."""
    findings = list(checked.diagnostics)
    for one in smaller:
        assert one.plan is not None, "it has checked clean before"
        note = shrinking_note(one.plan)
        known = {(other.code, other.primary) for other in findings}
        errors = (new for new in one.diagnostics if new.severity is Severity.ERROR)
        findings.extend(
            replace(new, notes=(*new.notes, note)) for new in errors if (new.code, new.primary) not in known
        )
    graph = None if has_errors(findings) else checked.graph
    return replace(checked, diagnostics=in_order(findings), graph=graph)


@contextlib.contextmanager
def progress(path: str, *, stream: TextIO) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on a terminal, in one line that is cleared at the end."""
    what = f"rehearsing {path}"
    with spinner(what, stream=stream) as show:
        yield lambda text: show(f"{what}: {text}")


def _judged(checked: Checked, deep: Deep) -> Iterator[Diagnostic]:
    """The findings that the rehearsed peak breaks an expectation, or does not fit the device.

    None that the estimate has already.
    """
    measured = deep.rehearsal.measured
    plan = None if checked.bound is None else checked.bound.plan
    if plan is None or measured is None or (plan.fsdp is not None and plan.fsdp.cpu_offload):
        # With offloading, the rehearsal counts host memory too.
        return
    known = {(diagnostic.code, diagnostic.primary.span) for diagnostic in checked.diagnostics}
    for broken in expectation_broken.rehearsed(plan, {"peak_memory": measured.reserved_bytes}):
        if (broken.code, broken.primary.span) not in known:
            yield broken
    codes = (does_not_fit.CODE, does_not_fit.TIGHT)
    if plan.hardware is None or any(finding.code in codes for finding in checked.diagnostics):
        return
    parts = tuple(sorted(measured.peak.parts, key=lambda part: -part[1]))
    found = Demand(plan.hardware.gpu, measured.reserved_bytes, measured.peak.segment, parts)
    finding = does_not_fit.rehearsed(found, plan.span("hardware.gpu"))
    if finding is not None:
        yield finding


def read_data(
    path: str, checked: Checked, *, is_asked: bool, runs_extensions: bool = False
) -> tuple[Checked, tuple[Row, ...]]:
    """The plan with what a sample of its data shows, and the rows that `check` prints about it.

    A plan with errors is returned unchanged, because it has no graph. If data was not asked for, missing
    files are not an error: they may be on the machines of the run. Data that the plan's own code makes is
    read only if that may run. UsageError without a library.
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
    added: list[Diagnostic] = []
    rows: list[Row] = []
    known: set[str] = set()
    for span, opened in openings(checked.graph, base=Path(path).parent, runs_extensions=runs_extensions):
        try:
            part = opened()
        except DataError as error:
            if is_asked:
                added.append(UNUSABLE.at(span or nowhere, error.message, help=error.help))
            else:
                rows.append(("data", f"not read: {error.message}"))
            continue
        seen, more = findings(part, nowhere=nowhere, known=known)
        added += more
        if seen is not None:
            rows.append(summary_row(seen))
    diagnostics = in_order((*checked.diagnostics, *added))
    graph = None if has_errors(diagnostics) else checked.graph
    return replace(checked, diagnostics=diagnostics, graph=graph), tuple(rows)
