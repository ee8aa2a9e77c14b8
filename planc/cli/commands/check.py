"""`planc check`."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planc.api import Checked
from planc.cli.support import options, plans
from planc.cli.support.check_scope import (
    PlanFile,
    documents,
    included_by,
    is_part,
    new_head,
    plan_files,
    unread,
)
from planc.cli.support.exits import FINDINGS, UsageError
from planc.cli.support.terminal import wants_color, write_fitted, write_view
from planc.diagnostics.formats import FORMATS
from planc.diagnostics.report import PlanFindings, Report
from planc.graph.graph import plan_hash
from planc.outgoing import write_commands, write_text
from planc.plan.elastic_meshes import smaller_plans
from planc.record import record
from planc.show.overview import essence
from planc.source import SourceFile
from planc.tables import Row, plural, render_table

if TYPE_CHECKING:
    from planc.cli.support.fixing import FixedPlan

DESCRIPTION = """\
Find every error in a plan before it runs: syntax, names, types, and all rules against the model's
structure. Reads no weights, and needs no torch if the model's inventory is cached.

--data also reads a sample of the data with the real tokenizer, and reports rows that can't be used, rows
without labels, and whatever else would surprise. `planc data show` shows the rows.

--deep also does that, and rehearses the plan: it runs the training code on fake tensors in a fake process
group of the plan's size, once for each distinct rank. It takes seconds; results are cached. Code of
the plan's own (`extension`) runs with --run-extensions only: its loss, a model class or data.

A comment `# planc: ignore[P802] reason` at the end of a line, or on the line above it, suppresses a warning.
Errors can't be suppressed."""

EPILOG = """\
examples:
  planc check llama.plan
  planc check plans                            (every plan in a directory)
  planc check plans/*.plan --output-format concise
  planc check llama.plan --set mesh.tp=4 --world-size 64
  planc check llama.plan --gpu h100
  planc check llama.plan --data
  planc check llama.plan --deep
  planc check llama.plan --diff
  planc check llama.plan --fix"""

FULL = "full"


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plans_argument(
        parser,
        help="a .plan file, a directory of them, or - for stdin (paths start at the current directory)",
    )
    options.add_set_argument(parser)
    options.add_gpu_argument(parser)
    options.add_world_size_argument(parser)
    options.add_output_format_argument(parser, (FULL, *(listed.name for listed in FORMATS)))
    options.add_quiet_argument(parser, help="print findings only, and nothing for plans that pass")
    parser.add_argument("--data", action="store_true", help="also read a sample of the data; needs numpy")
    parser.add_argument("--deep", action="store_true", help="also rehearse the plan; needs torch")
    options.add_run_extensions_argument(parser)
    parser.add_argument(
        "--fix", action="store_true", help="apply safe fixes to the plans and the files that they include"
    )
    parser.add_argument("--diff", action="store_true", help="print the fixes as a diff; write nothing")
    parser.add_argument(
        "--unsafe-fixes", action="store_true", help="with --fix or --diff: include unsafe fixes"
    )


@record
class _Result:
    """A plan as it is after any fixes."""

    path: str
    checked: Checked
    seconds: float
    fixed: FixedPlan | None = None
    rehearsed: tuple[Row, ...] = ()
    data: tuple[Row, ...] = ()
    """The findings of a sample of the data."""


def run(arguments: Namespace) -> int:
    """0 for clean plans, 1 for errors in any or a diff, 2 if one could not be read."""
    _require_consistent(arguments)
    files = plan_files(arguments.plans)
    settings = plans.settings(arguments)
    has_directory = any(file.is_listed for file in files)
    results: list[_Result] = []
    for file in files:
        results.append(_check(file.path, arguments, settings))
        # Which files of a directory are parts of others is known once all have been read.
        if not has_directory:
            _print(results[-1], arguments, is_alone=len(files) == 1)
    num_parts = 0
    if has_directory:
        results, num_parts = _without_parts(files, results)
        for result in results:
            _print(result, arguments, is_alone=False)
    if arguments.output_format == FULL and len(files) > 1 and not (arguments.quiet or arguments.diff):
        sys.stdout.write(_total(results, num_parts=num_parts))
    for renderer in FORMATS:
        if renderer.name == arguments.output_format:
            write = write_commands if renderer.name == "github" else write_text
            write(renderer.render(_report(results, settings)), stream=sys.stdout)
    code = plans.exit_code([diagnostic for result in results for diagnostic in result.checked.diagnostics])
    has_diff = arguments.diff and any(result.fixed and result.fixed.is_changed for result in results)
    return max(code, FINDINGS) if has_diff else code


def _require_consistent(arguments: Namespace) -> None:
    """UsageError for arguments that exclude each other."""
    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UsageError("--unsafe-fixes needs --fix or --diff")
    if arguments.diff and (arguments.deep or arguments.data):
        raise UsageError("--diff can't be combined with --data or --deep")
    if arguments.diff and arguments.output_format != FULL:
        raise UsageError("--diff can't be combined with --output-format")
    if options.STDIN in arguments.plans and (
        arguments.fix or arguments.diff or arguments.deep or arguments.data
    ):
        raise UsageError("`-` (stdin) can't be combined with --fix, --diff, --data or --deep")


def _check(path: str, arguments: Namespace, settings: Sequence[SourceFile]) -> _Result:
    started = time.perf_counter()
    if path == options.STDIN:
        checked = plans.check_stdin(
            settings=settings, world_size=arguments.world_size, is_quiet=arguments.quiet
        )
        return _Result(plans.STDIN_NAME, checked, time.perf_counter() - started)
    if not (arguments.fix or arguments.diff):
        checked = plans.check(
            path,
            settings=settings,
            world_size=arguments.world_size,
            is_quiet=arguments.quiet,
            runs_extensions=arguments.run_extensions,
        )
        return _rehearsed(_Result(path, checked, time.perf_counter() - started), arguments, settings)
    from planc.cli.support import fixing

    fixed = fixing.fix_plan(
        path, settings=settings, world_size=arguments.world_size, with_unsafe=arguments.unsafe_fixes
    )
    if not arguments.diff:
        fixing.write(fixed)
    _report_fixes(fixed, arguments)
    return _rehearsed(_Result(path, fixed.checked, time.perf_counter() - started, fixed), arguments, settings)


def _without_parts(files: Sequence[PlanFile], results: Sequence[_Result]) -> tuple[list[_Result], int]:
    """The results without the presets and bases of listed directories, and the number of those."""
    included = included_by(result.checked for result in results)
    kept = [
        one
        for file, one in zip(files, results, strict=True)
        if not (file.is_listed and is_part(one.checked, one.path, included=included))
    ]
    return kept, len(results) - len(kept)


def _rehearsed(result: _Result, arguments: Namespace, settings: Sequence[SourceFile]) -> _Result:
    result = _with_data(result, arguments)
    if not arguments.deep:
        return result
    from planc.cli.support.deep import rehearse, with_smaller  # a plain check should not wait for the import

    started = time.perf_counter()
    permitted = partial(rehearse, stream=sys.stderr, runs_extensions=arguments.run_extensions)
    checked, rows = permitted(result.path, result.checked)
    if checked.plan is not None and checked.graph is not None:
        smaller = [plan.mesh.world_size for plan in smaller_plans(checked.plan)]
        plain = (
            plans.check(
                result.path,
                settings=settings,
                world_size=size,
                runs_extensions=arguments.run_extensions,
            )
            for size in smaller
        )
        checked = with_smaller(checked, (permitted(result.path, one)[0] for one in plain))
    seconds = result.seconds + time.perf_counter() - started
    return replace(result, checked=checked, seconds=seconds, rehearsed=rows)


def _with_data(result: _Result, arguments: Namespace) -> _Result:
    if not (arguments.data or arguments.deep):
        return result
    from planc.cli.support.deep import read_data  # as above

    started = time.perf_counter()
    checked, rows = read_data(
        result.path,
        result.checked,
        is_asked=arguments.data,
        runs_extensions=arguments.run_extensions,
    )
    seconds = result.seconds + time.perf_counter() - started
    return replace(result, checked=checked, seconds=seconds, data=rows)


def _report_fixes(fixed: FixedPlan, arguments: Namespace) -> None:
    if arguments.quiet:
        return
    for file in fixed.files:
        notes = []
        if file.num_fixed:
            notes.append(f"{'would fix' if arguments.diff else 'fixed'} {plans.findings(file.num_fixed)}")
        if num_undone := fixed.num_undone(file):
            notes.append(f"{_fixes(num_undone)} not applied, because another finding would follow")
        if num_unsafe := fixed.num_unsafe(file):
            notes.append(f"{_fixes(num_unsafe, kind='unsafe ')} left: see --unsafe-fixes --diff")
        if notes:
            print(f"planc: {file.path}: {'; '.join(notes)}", file=sys.stderr)


def _fixes(number: int, *, kind: str = "") -> str:
    return f"{number} {kind}fix{'es' if number != 1 else ''}"


def _print(result: _Result, arguments: Namespace, *, is_alone: bool) -> None:
    """The findings, and for a plan that passed a summary, or one line among several plans."""
    if arguments.diff:
        assert result.fixed is not None, "a diff needs fixes"
        sys.stdout.write(result.fixed.diff())
        sys.stderr.write(plans.render_findings(result.checked, stream=sys.stderr))
        return
    if arguments.output_format != FULL:
        return
    checked = result.checked
    sys.stdout.write(plans.render_findings(checked, stream=sys.stdout))
    if checked.graph is None or arguments.quiet:
        return
    digest = plan_hash(checked.graph)[:12]
    head = f"{result.path} passed, plan_hash {digest}, in {result.seconds:.2f} s"
    write_fitted(head, stream=sys.stdout)
    if is_alone:
        _print_summary(result)


def _print_summary(result: _Result) -> None:
    checked = result.checked
    draft = checked.draft
    assert draft is not None, "the plan passed"
    rows = [*essence(draft.bound, draft.graph, draft.estimate), *result.data, *result.rehearsed]
    if checked.overrides:
        rows.append(("settings", ", ".join(checked.overrides)))
    base, is_deep = Path(result.path).parent, bool(result.rehearsed)
    rows += [*documents(draft.bound.plan, base=base), *new_head(draft.graph, base=base)]
    rest = unread(draft.bound.plan, draft.graph, base=base, is_deep=is_deep, has_data=bool(result.data))
    if rest is not None:
        rows.append(rest)
    *lines, last = render_table(rows, indent="  ").splitlines()
    write_view("\n".join(lines), stream=sys.stdout)
    write_fitted(f"\033[2m{last}\033[0m" if wants_color(sys.stdout) else last, stream=sys.stdout)


def _total(results: Sequence[_Result], *, num_parts: int) -> str:
    """`All 43 plans passed`, `41 of 43 plans passed`."""
    num_plans, num_passed = len(results), sum(result.checked.graph is not None for result in results)
    head = "All " if num_passed == num_plans > 1 else "" if num_passed == num_plans else f"{num_passed} of "
    parts = f"; {plural(num_parts, 'file')} skipped as presets and bases" if num_parts else ""
    return f"{head}{plural(num_plans, 'plan')} passed{parts}\n"


def _report(results: Sequence[_Result], settings: Sequence[SourceFile]) -> Report:
    names = tuple(setting.name for setting in settings)
    return Report(
        tuple(
            PlanFindings(result.path, result.checked.diagnostics, result.checked.sources, names)
            for result in results
        ),
        root=os.getcwd(),
    )
