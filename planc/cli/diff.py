"""`planc diff`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from planc.api import Checked
from planc.checks.expectation_broken import CODE as BROKEN
from planc.cli import plans
from planc.cli.exits import CLEAN, COULD_NOT_RUN, FINDINGS, UsageError
from planc.cli.revisions import checkpoint_in, read_side, read_version, resuming
from planc.cli.settings import settings_from
from planc.diagnostics import has_errors
from planc.diff.differ import diff
from planc.diff.machine import render_diff_json
from planc.diff.markdown import render_markdown
from planc.diff.model import Group, PlanDiff
from planc.diff.resources import UNKNOWN
from planc.diff.side import Side
from planc.diff.text import render_text
from planc.show.table import printable
from planc.source import SourceFile

DESCRIPTION = """\
Say what a change of a plan changes, grouped by consequence: layout, memory, communication, checkpoint,
batch, numerics, run. OLD and NEW are plans, compiled artifacts, git:REVISION:PATH, run folders or
checkpoints; a model is always the one that is here now. Memory and bytes are those of `planc estimate`.
Comments, order, layout and parameters make no semantic change.

Where OLD is a checkpoint or a run folder, it also prints whether a run of NEW would resume, by the verdict
that the run itself acts on, and the --allow-change that would lift a refusal."""

EPILOG = """\
examples:
  planc diff git:main:plans/llama.plan plans/llama.plan
  planc diff llama.plan llama.plan --set mesh.tp=8     (what would the setting change?)
  planc diff runs/x/checkpoints/step-500 llama.plan   (would it resume?)
  planc diff old.plan new.plan --output-format markdown --fail-on checkpoint --fail-on expect

--set works on NEW alone. TP_SIZE and its like are not read: a difference is between what is written."""


EXPECT = "expect"
"""What `--fail-on` calls broken expectations, beside the groups."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--output-format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 where the meaning differs")
    add_fail_on_argument(parser)
    parser.add_argument(
        "--path",
        metavar="PLAN",
        help="OLD and NEW are files that hold versions of PLAN: its folder is where their paths start",
    )
    plans.add_set_argument(parser)
    plans.add_world_size_argument(parser)


def add_fail_on_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on",
        action="append",
        choices=(*map(str, Group), EXPECT),
        default=[],
        metavar="GROUP",
        help=f"exit with 1 where this group differs: {', '.join((*map(str, Group), EXPECT))}; again for more",
    )


def run(arguments: Namespace) -> int:
    """0; 1 where NEW has errors, or differs under --exit-code or --fail-on; 2 where a side cannot be read."""
    settings, _ = settings_from(arguments.set, {})
    if arguments.path and os.devnull in (arguments.old, arguments.new):
        what = "new" if arguments.old == os.devnull else "gone"
        print(f"planc diff  {printable(arguments.path)}  is {what}")
        return CLEAN
    old, old_checked = _side(arguments.old, path=arguments.path, settings=(), world_size=None)
    if old is None:
        sys.stderr.write(plans.render_findings(old_checked, stream=sys.stderr))
        print(f"planc: error: {arguments.old} is too broken to compare", file=sys.stderr)
        return COULD_NOT_RUN
    new, new_checked = _side(
        arguments.new, path=arguments.path, settings=settings, world_size=arguments.world_size
    )
    if new is None:
        sys.stderr.write(plans.render_findings(new_checked, stream=sys.stderr))
        print(f"planc: error: {arguments.new} is too broken to compare", file=sys.stderr)
        return plans.exit_code(new_checked.diagnostics)
    checkpoint = None if arguments.path else checkpoint_in(arguments.old)
    found = diff(old, new, resume=resuming(checkpoint, new) if checkpoint else None)
    sys.stdout.write(_render(found, arguments.output_format))
    is_failure = has_errors(new.diagnostics) or (arguments.exit_code and not found.same_meaning)
    return FINDINGS if is_failure or fails(found, arguments.fail_on) else CLEAN


def _side(
    name: str, *, path: str | None, settings: Sequence[SourceFile], world_size: int | None
) -> tuple[Side | None, Checked]:
    """A side as `read_side` gives it, or as a version of the plan at `path`."""
    if path:
        return read_version(name, path=path, settings=settings, world_size=world_size)
    return read_side(name, settings=settings, world_size=world_size)


def fails(found: PlanDiff, groups: Sequence[str]) -> bool:
    """Whether any of the groups that the caller watches differs. `expect` is every broken expectation.

    UsageError for a group that could not be compared: it must not pass for unchanged.
    """
    if EXPECT in groups and any(finding.code.code == BROKEN.code for finding in found.diagnostics):
        return True
    unknown = [change for change in found.changes if change.note == UNKNOWN]
    for group in (Group.MEMORY, Group.COMMUNICATION):
        if unknown and group in groups:
            raise UsageError(f"--fail-on {group}: {UNKNOWN}")
    return any(found.differs_in(group) for group in Group if group in groups)


def _render(found: PlanDiff, output_format: str) -> str:
    match output_format:
        case "markdown":
            return render_markdown(found)
        case "json":
            return render_diff_json(found)
        case _:
            return render_text(found, colour=plans.wants_colour(sys.stdout))
