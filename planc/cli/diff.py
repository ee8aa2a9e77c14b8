"""`planc diff`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from planc.cli import plans
from planc.cli.exits import CLEAN, COULD_NOT_RUN, FINDINGS
from planc.cli.revisions import read_side
from planc.cli.settings import settings_from
from planc.diagnostics import has_errors
from planc.diff.differ import diff
from planc.diff.machine import render_diff_json
from planc.diff.markdown import render_markdown
from planc.diff.model import PlanDiff
from planc.diff.text import render_text

DESCRIPTION = """\
Say what a change of a plan changes, grouped by consequence: layout, checkpoint, batch, numerics, run.
OLD and NEW are plans, compiled artifacts, or git:REVISION:PATH; a model is always the working tree's.
Comments, order, layout and parameters make no semantic change."""

EPILOG = """\
examples:
  planc diff git:main:plans/llama.plan plans/llama.plan
  planc diff llama.plan llama.plan --set mesh.tp=8     (what would the setting change?)
  planc diff old.plan new.plan --output-format markdown --exit-code

--set works on NEW alone. TP_SIZE and its like are not read: a difference is between what is written."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--output-format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 where the meaning differs")
    plans.add_set_argument(parser)
    plans.add_world_size_argument(parser)


def run(arguments: Namespace) -> int:
    """0; 1 where NEW has errors, or differs under --exit-code; 2 where OLD or NEW cannot be read."""
    settings, _ = settings_from(arguments.set, {})
    old, old_checked = read_side(arguments.old, settings=(), world_size=None)
    if old is None:
        sys.stderr.write(plans.render_findings(old_checked, stream=sys.stderr))
        print(f"planc: error: {arguments.old} is too broken to compare", file=sys.stderr)
        return COULD_NOT_RUN
    new, new_checked = read_side(arguments.new, settings=settings, world_size=arguments.world_size)
    if new is None:
        sys.stderr.write(plans.render_findings(new_checked, stream=sys.stderr))
        print(f"planc: error: {arguments.new} is too broken to compare", file=sys.stderr)
        return plans.exit_code(new_checked.diagnostics)
    found = diff(old, new)
    sys.stdout.write(_render(found, arguments.output_format))
    is_failure = has_errors(new.diagnostics) or (arguments.exit_code and not found.same_meaning)
    return FINDINGS if is_failure else CLEAN


def _render(found: PlanDiff, output_format: str) -> str:
    match output_format:
        case "markdown":
            return render_markdown(found)
        case "json":
            return render_diff_json(found)
        case _:
            return render_text(found, colour=plans.wants_colour(sys.stdout))
