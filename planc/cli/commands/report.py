"""`planc report`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from planc.cli.commands.runs import is_directory_of_runs, list_runs
from planc.cli.support import options, plans
from planc.cli.support.deep import rehearsal, with_findings
from planc.cli.support.exits import CLEAN, UsageError, require_libraries
from planc.cli.support.pages import page_path, write_page
from planc.cli.support.settings import settings_from
from planc.cli.versions.revisions import checkpoint_in, read_side, resuming
from planc.deep_check.check import Deep, cached_deep
from planc.diff.differ import diff
from planc.diff.side import Side, side_of
from planc.hub.user_dirs import cache_dir
from planc.report.html import Html
from planc.report.report import Compared, plan_page, run_page
from planc.report.run import RunRecord, read_run
from planc.report.runs import Listed, runs_page
from planc.runtime.checkpoint_format.layout import step_of
from planc.runtime.data.errors import DataError
from planc.source import SourceFile

_COMPILED = ".json"

DESCRIPTION = """\
Write one HTML file about a plan or a run, with pictures: the mesh, a layer of each kind with its shards and
collectives, memory and communication by part, the expected time of a step and its bound, and the schedule. A
run's page starts with its status and its curves: loss, gradient norm, tokens/s, memory. The figures are those
of `planc show`, `planc estimate` and `planc diff`. The page of several runs has their curves over each
other, by step and by tokens, and what differs between their plans.

The file loads nothing from a network and works without one. If `planc check --deep` has rehearsed the plan,
the page has its memory over a step; --deep rehearses first. --data adds rows of the data, with what is
trained on, and statistics."""

EPILOG = """\
examples:
  planc report llama.plan -o report.html
  planc report llama.plan -o report.html --gpu h100 --deep
  planc report llama.plan -o report.html --against git:main:llama.plan
  planc report runs/llama -o report.html
  planc report runs/a runs/b -o report.html
  planc report runs -o report.html            (every run of a directory, such as a sweep's)

A plan that breaks its `expect` block, or does not fit its device, has a page; the errors follow, and the exit
code is 1."""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plans_argument(
        parser,
        help="a .plan file, a compiled plan or a run directory; of several runs, or of a directory of "
        "runs, the curves are drawn over each other",
    )
    options.add_output_argument(parser, help="HTML file to write")
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="also show the difference from this plan, named as OLD of `planc diff`",
    )
    parser.add_argument(
        "--deep", action="store_true", help="rehearse the plan first, as `planc check --deep`"
    )
    parser.add_argument(
        "--data", action="store_true", help="read a sample of the data first, as `planc data show`"
    )
    options.add_run_extensions_argument(parser)
    options.add_set_argument(parser)
    options.add_gpu_argument(parser)


def run(arguments: Namespace) -> int:
    """Exits as `check` does; 2 if a file can't be read or written. What `estimate` shows gets a page."""
    page_path(arguments.output)
    runs = _several(arguments)
    if runs is not None:
        title = "Runs" if len(arguments.plans) > 1 else f"Runs of {Path(arguments.plans[0]).name}"
        write_page(arguments.output, runs_page(runs, title=title))
        return CLEAN
    (arguments.plan,) = arguments.plans
    path = Path(arguments.plan)
    if path.is_dir() or path.suffix == _COMPILED:
        return _compiled(path, arguments)
    checked = plans.check(
        arguments.plan, settings=plans.settings(arguments), runs_extensions=arguments.run_extensions
    )
    plans.require_figures(checked)
    side = side_of(checked, name=arguments.plan)
    assert side is not None, "a plan with figures has a graph"
    deep = _cached(side)
    permitted = arguments.run_extensions
    if arguments.deep:
        deep = rehearsal(arguments.plan, checked, stream=sys.stderr, runs_extensions=permitted)
    if arguments.deep and deep is not None:
        checked = with_findings(checked, deep)
    data = _data(side, path.parent, permitted=permitted) if arguments.data else None
    write_page(arguments.output, plan_page(side, deep=deep, data=data, against=_against(side, arguments)))
    return plans.finish(checked)


def _several(arguments: Namespace) -> list[Listed] | None:
    """The runs that are drawn over each other; None for one plan or one run. UsageError for other paths."""
    folders = [Path(name) for name in arguments.plans]
    first = folders[0]
    if len(folders) == 1 and not (first.is_dir() and is_directory_of_runs(first)):
        return None
    if arguments.deep or arguments.data or arguments.against or arguments.set:
        raise UsageError("--deep, --data, --against, --set and --gpu are for one plan or one run")
    listed: list[Listed] = []
    for folder in folders:
        if not folder.is_dir() or step_of(folder.resolve()) is not None:
            raise UsageError(f"{folder} is not a run directory: several plans are compared by `planc diff`")
        runs, unread = list_runs(folder)
        if unread or not runs:
            raise UsageError(unread[0] if unread else f"{folder} has no runs")
        several = len(folders) > 1 and is_directory_of_runs(folder)
        listed += [replace(run, name=f"{folder.name}/{run.name}") for run in runs] if several else runs
    names = [run.name for run in listed]
    if len({*names}) < len(names):
        listed = [replace(run, name=f"{number} {run.name}") for number, run in enumerate(listed, start=1)]
    return listed


def _data(side: Side, base: Path, *, permitted: bool) -> Html:
    """Render a sample of each source. UsageError for data that can't be read."""
    require_libraries("--data", "numpy")
    # Lazy: they import numpy.
    from planc.data_view.look import look
    from planc.data_view.parts import parts
    from planc.report.data import data_section

    try:
        return data_section([look(part) for part in parts(side.graph, base=base, runs_extensions=permitted)])
    except DataError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error


def _compiled(path: Path, arguments: Namespace) -> int:
    """The page of a compiled plan, or of a run, which keeps its compiled plan."""
    if arguments.deep or arguments.data:
        raise UsageError(f"{path} is compiled: --deep and --data need its plan")
    if path.is_dir() and step_of(path.resolve()) is not None:
        raise UsageError(f"{path} is a checkpoint: pass its run directory")
    settings, _ = settings_from(arguments.set, {})
    side, checked = read_side(arguments.plan, settings=settings, world_size=None)
    if side is None:
        return plans.finish(checked)
    deep, against = _cached(side), _against(side, arguments)
    if path.is_dir():
        text = run_page(side, _record(path), deep=deep, against=against)
    else:
        text = plan_page(side, deep=deep, against=against)
    write_page(arguments.output, text)
    return CLEAN


def _record(folder: Path) -> RunRecord:
    """Read a run's logs. UsageError for a file that can't be read."""
    try:
        return read_run(folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from error


def _cached(side: Side) -> Deep | None:
    """An earlier rehearsal; None without one, or without the model."""
    estimated = side.estimate
    if estimated is None:
        return None
    nowhere = SourceFile(side.name, "").start()
    return cached_deep(side.graph, estimate=estimated, cache_dir=cache_dir(), nowhere=nowhere)


def _against(side: Side, arguments: Namespace) -> Compared | None:
    """The difference from another plan. UsageError for one that can't be compared."""
    if arguments.against is None:
        return None
    old, checked = read_side(arguments.against, settings=(), world_size=None)
    if old is None:
        sys.stderr.write(plans.render_findings(checked, stream=sys.stderr))
        raise UsageError(f"{arguments.against} has errors that prevent a comparison")
    checkpoint = checkpoint_in(arguments.against)
    found = diff(old, side, resume=resuming(checkpoint, side) if checkpoint else None)
    return Compared(found, old, side)
