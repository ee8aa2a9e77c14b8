"""`planc review`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planc.api import Checked
from planc.cli.commands.diff import add_fail_on_argument, add_page_argument, fails, require_page
from planc.cli.support.exits import CLEAN, FINDINGS
from planc.cli.support.options import add_output_format_argument
from planc.cli.support.pages import write_page
from planc.cli.versions.changes import ChangedPlan, changed_plans, fork_point, from_here
from planc.cli.versions.git import top_folder
from planc.cli.versions.revisions import GIT_PREFIX, read_side
from planc.diagnostics import has_errors
from planc.diagnostics.github import render_github
from planc.diagnostics.report import PlanFindings, Report
from planc.diff.differ import diff
from planc.diff.review import Reviewed, render_review, what_is_new
from planc.outgoing import write_commands

DESCRIPTION = """\
Summarize a branch's changes to every plan of the repository for code review: plans whose text differs from
where the branch left BASE, and plans that include a changed file, or whose model's config.json or
inventory.json changed. It reads the working tree. The markdown format is a comment for reviewers; the github
format annotates lines of the plans; the html format is a page with pictures of what moved."""

EPILOG = """\
examples:
  planc review main
  planc review origin/main --output-format github
  planc review main --output-format html -o review.html
  planc review main --fail-on checkpoint

TP_SIZE, DP_SIZE and CP_SIZE are ignored: a review compares plans as written."""


@dataclass(frozen=True, slots=True)
class _Plan:
    reviewed: Reviewed
    checked: Checked


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", help="the git branch or revision to merge into")
    add_output_format_argument(parser, ("markdown", "github", "html"), note="; html needs -o")
    add_page_argument(parser)
    add_fail_on_argument(parser)


def run(arguments: Namespace) -> int:
    """0; 1 if a plan has errors or differs under --fail-on; 2 if git or a file can't be read."""
    require_page(arguments)
    revision = fork_point(arguments.base)
    plans = list(_review(revision))
    if arguments.output_format == "github":
        write_commands(render_github(_report(plans)), stream=sys.stdout)
    elif arguments.output_format == "html":
        from planc.report.report import review_page  # Markdown should not wait for the import

        write_page(arguments.output, review_page([plan.reviewed for plan in plans], revision=revision))
    else:
        sys.stdout.write(render_review([plan.reviewed for plan in plans], revision=revision))
    is_failure = any(has_errors(plan.reviewed.diagnostics) for plan in plans)
    found = [plan.reviewed.found for plan in plans if plan.reviewed.found]
    return FINDINGS if is_failure or any(fails(one, arguments.fail_on) for one in found) else CLEAN


def _review(revision: str) -> Iterator[_Plan]:
    top = top_folder()
    for change in changed_plans(revision):
        if change.new is None:
            yield _Plan(Reviewed(change.path, what="is deleted"), Checked({}, ()))
            continue
        plan = _compare(change, revision=revision, top=top)
        # The plans that include a broken part are listed too, with the same errors.
        if plan.reviewed.found or not change.is_included:
            yield plan


def _compare(change: ChangedPlan, *, revision: str, top: Path) -> _Plan:
    """The difference; for a new plan, or one that can't be compared, its findings."""
    name = from_here(change.path, top=top)
    new, checked = read_side(name, settings=(), world_size=None)
    reviewed = Reviewed(name, because=change.because, diagnostics=checked.diagnostics)
    if change.old is None:
        return _Plan(replace(reviewed, what=what_is_new(new)), checked)
    if new is None:
        return _Plan(replace(reviewed, what="has errors that prevent a comparison"), checked)
    old, _ = read_side(f"{GIT_PREFIX}{revision}:{change.old}", settings=(), world_size=None)
    if old is None:
        return _Plan(replace(reviewed, what=f"had errors at {revision} that prevent a comparison"), checked)
    named = replace(old, name=from_here(change.old, top=top))
    found = diff(named, new)
    sides = named, new
    return _Plan(replace(reviewed, found=found, diagnostics=found.diagnostics, sides=sides), checked)


def _report(plans: list[_Plan]) -> Report:
    return Report(
        tuple(
            PlanFindings(plan.reviewed.path, plan.reviewed.diagnostics, plan.checked.sources, ())
            for plan in plans
        ),
        root=os.getcwd(),
    )
