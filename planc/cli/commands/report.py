"""`planc report`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from planc.api import Checked
from planc.cli.support import plans
from planc.cli.support.arguments import (
    add_gpu_argument,
    add_output_argument,
    add_plan_argument,
    add_set_argument,
)
from planc.cli.support.deep import rehearse
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.pages import page_path, write_page
from planc.cli.versions.revisions import read_side
from planc.deep_check.check import Deep, cached_deep
from planc.diff.differ import diff
from planc.diff.side import Side, side_of
from planc.report.report import Compared, plan_page, run_page
from planc.report.run_record import read_run
from planc.runtime.checkpoint_format.layout import step_of
from planc.source import SourceFile
from planc.user_dirs import cache_dir

DESCRIPTION = """\
Write one HTML file about a plan or a run, with pictures: the mesh, a layer of each kind with its shards and
collectives, memory and communication by part, the expected time of a step and its bound, and the schedule. A
run's page starts with its status and its curves: loss, gradient norm, tokens/s, memory. The figures are those
of `planc show`, `planc estimate` and `planc diff`.

The file loads nothing from a network and works without one. If `planc check --deep` has rehearsed the plan,
the page has its memory over a step; --deep rehearses first."""

EPILOG = """\
examples:
  planc report llama.plan -o report.html
  planc report llama.plan -o report.html --gpu h100 --deep
  planc report llama.plan -o report.html --against git:main:llama.plan
  planc report runs/llama -o report.html

A plan that breaks its `expect` block, or does not fit its device, has a page; the errors follow, and the exit
code is 1."""


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_argument(parser, help="a .plan file, a compiled plan or a run directory")
    add_output_argument(parser, help="HTML file to write")
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="also show the difference from this plan, named as OLD of `planc diff`",
    )
    parser.add_argument(
        "--deep", action="store_true", help="rehearse the plan first, as `planc check --deep`"
    )
    add_set_argument(parser)
    add_gpu_argument(parser)


def run(arguments: Namespace) -> int:
    """As `check`; 2 if a file can't be read or written. A page is written for what `planc estimate` shows."""
    page_path(arguments.output)
    settings = plans.settings(arguments)
    path = Path(arguments.plan)
    if path.suffix == ".plan":
        return _plan(arguments, settings)
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if arguments.deep:
        raise UsageError("--deep needs a .plan file")
    if step_of(path.resolve()) is not None:
        raise UsageError(f"{path} is a checkpoint: pass its run directory")
    side, checked = read_side(arguments.plan, settings=settings, world_size=None)
    if side is None:
        return plans.finish(checked)
    deep, against = _cached(side), _against(side, arguments)
    if path.is_dir():
        try:
            text = run_page(side, read_run(path), deep=deep, against=against)
        except OSError as error:
            raise UsageError(f"{error.filename or path}: {error.strerror}") from error
    else:
        text = plan_page(side, deep=deep, against=against)
    return _write(arguments.output, text)


def _plan(arguments: Namespace, settings: Sequence[SourceFile]) -> int:
    checked = plans.check(arguments.plan, settings=settings)
    failure = plans.require_figures(checked)
    if failure is not None:
        return failure
    side = _side(checked, arguments.plan)
    if arguments.deep:
        checked, _ = rehearse(arguments.plan, checked, stream=sys.stderr)
    text = plan_page(side, deep=_cached(side), against=_against(side, arguments))
    _write(arguments.output, text)
    return plans.finish(checked)


def _side(checked: Checked, name: str) -> Side:
    side = side_of(checked, name=name)
    assert side is not None, "a plan with figures has a graph"
    return side


def _cached(side: Side) -> Deep | None:
    """The rehearsal of an earlier deep check."""
    estimated = side.estimate()
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
    return Compared(diff(old, side), old, side)


def _write(path: Path, text: str) -> int:
    write_page(path, text)
    print(f"{path}: {len(text.encode()):_} bytes", file=sys.stderr)
    return CLEAN
