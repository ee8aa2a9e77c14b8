"""`planc check`."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planc.api import Checked
from planc.cli.support import plans
from planc.cli.support.check_scope import unread
from planc.cli.support.exits import FINDINGS, UsageError
from planc.diagnostics.formats import FORMATS
from planc.diagnostics.report import PlanFindings, Report
from planc.graph.graph import plan_hash
from planc.plan.elastic_meshes import smaller_plans
from planc.record import record
from planc.show.overview import essence
from planc.source import SourceFile
from planc.tables import Row, render_table

if TYPE_CHECKING:
    from planc.cli.support.fixing import FixedPlan

DESCRIPTION = """\
Find every fault of a plan before it runs: syntax, names, types, and all rules against the model's
structure. Reads no weights and needs no torch where the model's inventory is at hand.

--deep also rehearses the plan: the run's own code on tensors without values, in a fake world of the plan's
size, for every rank that differs. It takes seconds, and is remembered.

A comment `# planc: ignore[P802] reason` at the end of a line, or alone above it, keeps a warning from
being reported there. Errors cannot be suppressed."""

EPILOG = """\
examples:
  planc check llama.plan
  planc check plans/*.plan --output-format concise
  planc check llama.plan --set mesh.tp=4 --world-size 64
  planc check llama.plan --gpu h100
  planc check llama.plan --deep
  planc check llama.plan --diff
  planc check llama.plan --fix"""

FULL = "full"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    plans.add_set_argument(parser)
    plans.add_gpu_argument(parser)
    plans.add_world_size_argument(parser)
    names = (FULL, *(listed.name for listed in FORMATS))
    parser.add_argument(
        "--output-format", choices=names, default=FULL, metavar="FORMAT", help=f"{', '.join(names)}"
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="write safe fixes into the plans and what they include; report what remains",
    )
    parser.add_argument("--deep", action="store_true", help="rehearse the plan too; needs torch")
    parser.add_argument("--diff", action="store_true", help="print the fixes as a diff and write nothing")
    parser.add_argument(
        "--unsafe-fixes", action="store_true", help="with --fix or --diff: the unsafe ones too"
    )


@record
class _Found:
    """A plan as it is after any fixes."""

    path: str
    checked: Checked
    seconds: float
    fixed: FixedPlan | None = None
    rehearsed: tuple[Row, ...] = ()


def run(arguments: Namespace) -> int:
    """0 for clean plans, 1 for errors in any or a diff, 2 where one could not be read."""
    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UsageError("--unsafe-fixes goes with --fix or --diff")
    if arguments.deep and arguments.diff:
        raise UsageError("--diff prints a diff, and so goes without --deep")
    if arguments.diff and arguments.output_format != FULL:
        raise UsageError("--diff prints a diff, and so goes without --output-format")
    settings = plans.settings(arguments)
    found: list[_Found] = []
    for path in arguments.plans:
        found.append(_check(path, arguments, settings))
        if arguments.diff:
            _print_diff(found[-1])
        elif arguments.output_format == FULL:
            _print_full(found[-1])
    for renderer in FORMATS:
        if renderer.name == arguments.output_format:
            sys.stdout.write(renderer.render(_report(found, settings)))
    code = plans.exit_code([diagnostic for one in found for diagnostic in one.checked.diagnostics])
    has_diff = arguments.diff and any(one.fixed and one.fixed.is_changed for one in found)
    return max(code, FINDINGS) if has_diff else code


def _check(path: str, arguments: Namespace, settings: Sequence[SourceFile]) -> _Found:
    started = time.perf_counter()
    if not (arguments.fix or arguments.diff):
        checked = plans.check(path, settings=settings, world_size=arguments.world_size)
        return _rehearsed(_Found(path, checked, time.perf_counter() - started), arguments, settings)
    from planc.cli.support import fixing

    fixed = fixing.fix_plan(
        path, settings=settings, world_size=arguments.world_size, with_unsafe=arguments.unsafe_fixes
    )
    if not arguments.diff:
        fixing.write(fixed)
    _say_fixed(fixed, is_written=not arguments.diff)
    return _rehearsed(_Found(path, fixed.checked, time.perf_counter() - started, fixed), arguments, settings)


def _rehearsed(found: _Found, arguments: Namespace, settings: Sequence[SourceFile]) -> _Found:
    if not arguments.deep:
        return found
    from planc.cli.support.deep import rehearse, with_smaller  # a plain check should not wait for the import

    started = time.perf_counter()
    checked, rows = rehearse(found.path, found.checked, stream=sys.stderr)
    if checked.plan is not None and checked.graph is not None:
        smaller = [plan.mesh.world_size for plan in smaller_plans(checked.plan)]
        plain = (plans.check(found.path, settings=settings, world_size=size) for size in smaller)
        checked = with_smaller(checked, (rehearse(found.path, one, stream=sys.stderr)[0] for one in plain))
    seconds = found.seconds + time.perf_counter() - started
    return replace(found, checked=checked, seconds=seconds, rehearsed=rows)


def _say_fixed(fixed: FixedPlan, *, is_written: bool) -> None:
    for file in fixed.files:
        said = []
        if file.num_fixed:
            said.append(f"{'fixed' if is_written else 'would fix'} {plans.findings(file.num_fixed)}")
        if num_undone := fixed.num_undone(file):
            said.append(f"not applied: the fix of {plans.findings(num_undone)}, which would bring another")
        if num_unsafe := fixed.num_unsafe(file):
            said.append(f"{plans.findings(num_unsafe)} left with an unsafe fix: see --unsafe-fixes --diff")
        if said:
            print(f"planc: {file.path}: {'; '.join(said)}", file=sys.stderr)


def _print_diff(found: _Found) -> None:
    assert found.fixed is not None, "a diff needs fixes"
    sys.stdout.write(found.fixed.diff())
    sys.stderr.write(plans.render_findings(found.checked, stream=sys.stderr))


def _print_full(found: _Found) -> None:
    checked = found.checked
    sys.stdout.write(plans.render_findings(checked, stream=sys.stdout))
    if checked.bound is None or checked.graph is None:
        return
    rows = [*essence(checked.bound, checked.graph), *found.rehearsed]
    if checked.overrides:
        rows.append(("settings", ", ".join(checked.overrides)))
    digest = plan_hash(checked.graph)[:12]
    sys.stdout.write(f"{found.path} is sound, plan_hash {digest}, in {found.seconds:.2f} s\n")
    base, is_deep = Path(found.path).parent, bool(found.rehearsed)
    rows.append(unread(checked.bound.plan, checked.graph, base=base, is_deep=is_deep))
    *lines, last = render_table(rows, indent="  ").splitlines()
    if plans.wants_colour(sys.stdout):
        last = f"\033[2m{last}\033[0m"
    sys.stdout.write("\n".join((*lines, last, "")))


def _report(found: Sequence[_Found], settings: Sequence[SourceFile]) -> Report:
    names = tuple(setting.name for setting in settings)
    return Report(
        tuple(PlanFindings(one.path, one.checked.diagnostics, one.checked.sources, names) for one in found),
        root=os.getcwd(),
    )
