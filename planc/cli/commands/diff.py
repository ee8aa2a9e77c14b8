"""`planc diff`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from planc.checks.run.expectation_broken import CODE as BROKEN
from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, COULD_NOT_RUN, FINDINGS, UsageError
from planc.cli.support.options import add_output_format_argument, add_set_argument, add_world_size_argument
from planc.cli.support.pages import page_path, write_page
from planc.cli.support.settings import settings_from
from planc.cli.support.terminal import wants_color, write_fitted
from planc.cli.versions.difftool import Pair, pairs
from planc.cli.versions.revisions import checkpoint_in, committed, read_side, resuming
from planc.diagnostics import has_errors
from planc.diff.differ import diff
from planc.diff.difference import Action, Group, PlanDiff
from planc.diff.machine import render_diff_json
from planc.diff.resources import UNKNOWN
from planc.diff.side import Side
from planc.diff.text import render_markdown, render_text
from planc.tables import printable

DESCRIPTION = """\
Show what changed between two plans, grouped by consequence: layout, memory, communication, time,
checkpoint, batch, numerics, run, expect. OLD and NEW are plans, compiled artifacts, git:REVISION:PATH, run
directories or checkpoints. Included files and the model (config.json, inventory.json) of git:REVISION:PATH
are read from that revision; a model that is not in git there is read as it is now, with a note. Memory and
bytes are those of `planc estimate`. Comments, order, formatting and parameters change no meaning. With one
plan, OLD is that file in git's HEAD.

The output also tells whether a run of NEW would resume from OLD, if that is a checkpoint or a run directory,
or else from a checkpoint that a run of OLD saved, and which --allow-change would permit it. The run decides
in the same way. A refusal counts for --fail-on checkpoint."""

EPILOG = """\
examples:
  planc diff plans/llama.plan                          (what have I changed since the last commit?)
  planc diff git:main:plans/llama.plan plans/llama.plan
  planc diff llama.plan llama.plan --set mesh.tp=8     (what would this setting change?)
  planc diff runs/x/checkpoints/step-500 llama.plan    (would it resume?)
  planc diff old.plan new.plan --output-format markdown --fail-on checkpoint --fail-on expect
  planc diff old.plan new.plan --output-format html -o diff.html    (with pictures of what moved)

--set applies to NEW only. TP_SIZE, DP_SIZE and CP_SIZE are ignored: a diff compares plans as written."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="a plan, artifact, git:REVISION:PATH, run or checkpoint")
    parser.add_argument(
        "new", metavar="NEW", nargs="?", help="as OLD; left out, OLD is a plan as committed, and NEW as it is"
    )
    add_output_format_argument(parser, ("text", "markdown", "json", "html"), note="; html needs -o")
    add_page_argument(parser)
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if the meaning differs")
    add_fail_on_argument(parser)
    parser.add_argument(
        "--path",
        metavar="PLAN",
        help="OLD and NEW are temporary files with versions of PLAN, as `git difftool` passes them; files "
        "that PLAN includes are read from the matching revision",
    )
    add_set_argument(parser)
    add_world_size_argument(parser)


def add_page_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="HTML file to write, for --output-format html"
    )


def require_page(arguments: Namespace) -> None:
    """UsageError unless a file is named for HTML, and for nothing else."""
    if (arguments.output_format == "html") != (arguments.output is not None):
        raise UsageError("--output-format html and -o FILE need each other")
    if arguments.output is not None:
        page_path(arguments.output)


def add_fail_on_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on",
        action="append",
        choices=tuple(map(str, Group)),
        default=[],
        metavar="GROUP",
        help=f"exit with 1 if this group differs: {', '.join(Group)}; can be repeated. checkpoint: also if a "
        "run would not resume; expect: if an expectation is broken, removed or changed, not if one is added",
    )


def run(arguments: Namespace) -> int:
    """0; 1 if NEW has errors, or differs under --exit-code or --fail-on; 2 if a side can't be read."""
    require_page(arguments)
    if arguments.path is None:
        if arguments.new is None:
            arguments.old, arguments.new = committed(arguments.old), arguments.old
        old, new = arguments.old, arguments.new
        return _compare(Pair(old, new, partial(read_side, old), partial(read_side, new)), arguments)
    if arguments.new is None:
        raise UsageError("--path needs OLD and NEW")
    if arguments.output is not None:
        raise UsageError("--path can't be combined with -o")
    code = CLEAN
    for pair in pairs(arguments.old, arguments.new, path=arguments.path):
        if isinstance(pair, str):
            print(f"planc diff  {printable(pair)}")
        else:
            code = max(code, _compare(pair, arguments))
    return code


def _compare(pair: Pair, arguments: Namespace) -> int:
    """Print the difference between two versions of a plan."""
    settings, _ = settings_from(arguments.set, {})
    old, old_checked = pair.read_old(settings=(), world_size=None)
    if old is None:
        sys.stderr.write(plans.render_findings(old_checked, stream=sys.stderr))
        print(f"planc: error: {pair.old_name} has errors that prevent a comparison", file=sys.stderr)
        return COULD_NOT_RUN
    new, new_checked = pair.read_new(settings=settings, world_size=arguments.world_size)
    if new is None:
        sys.stderr.write(plans.render_findings(new_checked, stream=sys.stderr))
        print(f"planc: error: {pair.new_name} has errors that prevent a comparison", file=sys.stderr)
        return plans.exit_code(new_checked.diagnostics)
    checkpoint = checkpoint_in(arguments.old) if arguments.path is None else None
    difference = diff(old, new, resume=resuming(checkpoint, new) if checkpoint else None)
    if pair.because and arguments.output_format not in ("json", "html"):
        print(f"{printable(pair.new_name)} includes {printable(pair.because)}, which changed:")
    if arguments.output is None:
        _write(difference, arguments.output_format)
    else:
        _write_page(difference, old, new, arguments.output)
    is_failure = has_errors(new.diagnostics) or (arguments.exit_code and not difference.same_meaning)
    return FINDINGS if is_failure or fails(difference, arguments.fail_on) else CLEAN


def fails(difference: PlanDiff, groups: Sequence[str]) -> bool:
    """Whether any of the groups differs; `expect` if an expectation is broken, removed or changed.

    UsageError for a group that could not be compared, since it may have changed.
    """
    if Group.EXPECT in groups and _weakens(difference):
        return True
    unknown = [change for change in difference.changes if change.note == UNKNOWN]
    for group in (Group.MEMORY, Group.COMMUNICATION):
        if unknown and group in groups:
            raise UsageError(f"--fail-on {group}: {UNKNOWN}")
    watched = [group for group in Group if group in groups and group is not Group.EXPECT]
    return any(map(difference.differs_in, watched))


def _weakens(difference: PlanDiff) -> bool:
    """Whether an expectation does not hold, or no longer stands as it was."""
    if any(finding.code.code == BROKEN.code for finding in difference.diagnostics):
        return True
    actions = {change.action for change in difference.changes if change.group is Group.EXPECT}
    return bool(actions & {Action.REMOVE, Action.CHANGE})


def _write(difference: PlanDiff, output_format: str) -> None:
    match output_format:
        case "markdown":
            sys.stdout.write(render_markdown(difference))
        case "json":
            sys.stdout.write(render_diff_json(difference))
        case _:
            write_fitted(render_text(difference, colour=wants_color(sys.stdout)), stream=sys.stdout)


def _write_page(difference: PlanDiff, old: Side, new: Side, path: Path) -> None:
    from planc.report.report import difference_page  # text should not wait for the import

    write_page(path, difference_page(difference, old, new))
