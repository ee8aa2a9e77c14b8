"""`planc diff`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial

from planc.checks.run.expectation_broken import CODE as BROKEN
from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, COULD_NOT_RUN, FINDINGS, UsageError
from planc.cli.support.settings import settings_from
from planc.cli.versions.difftool import Pair, pairs
from planc.cli.versions.revisions import checkpoint_in, read_side, resuming
from planc.diagnostics import has_errors
from planc.diff.differ import diff
from planc.diff.difference import Group, PlanDiff
from planc.diff.machine import render_diff_json
from planc.diff.markdown import render_markdown
from planc.diff.resources import UNKNOWN
from planc.diff.text import render_text
from planc.tables import printable

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
        help="OLD and NEW are files that hold versions of PLAN, as `git difftool` passes them; what PLAN "
        "includes is read from the revision that has such a version",
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
    if arguments.path is None:
        old, new = arguments.old, arguments.new
        return _compare(Pair(old, new, partial(read_side, old), partial(read_side, new)), arguments)
    code = CLEAN
    for one in pairs(arguments.old, arguments.new, path=arguments.path):
        if isinstance(one, str):
            print(f"planc diff  {printable(one)}")
        else:
            code = max(code, _compare(one, arguments))
    return code


def _compare(pair: Pair, arguments: Namespace) -> int:
    """Shows the difference of a plan's two versions."""
    settings, _ = settings_from(arguments.set, {})
    old, old_checked = pair.read_old(settings=(), world_size=None)
    if old is None:
        sys.stderr.write(plans.render_findings(old_checked, stream=sys.stderr))
        print(f"planc: error: {pair.old_name} is too broken to compare", file=sys.stderr)
        return COULD_NOT_RUN
    new, new_checked = pair.read_new(settings=settings, world_size=arguments.world_size)
    if new is None:
        sys.stderr.write(plans.render_findings(new_checked, stream=sys.stderr))
        print(f"planc: error: {pair.new_name} is too broken to compare", file=sys.stderr)
        return plans.exit_code(new_checked.diagnostics)
    checkpoint = checkpoint_in(arguments.old) if arguments.path is None else None
    found = diff(old, new, resume=resuming(checkpoint, new) if checkpoint else None)
    if pair.because and arguments.output_format != "json":
        print(f"{printable(pair.new_name)} includes {printable(pair.because)}, which changed:")
    sys.stdout.write(_render(found, arguments.output_format))
    is_failure = has_errors(new.diagnostics) or (arguments.exit_code and not found.same_meaning)
    return FINDINGS if is_failure or fails(found, arguments.fail_on) else CLEAN


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
