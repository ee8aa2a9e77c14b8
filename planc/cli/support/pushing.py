"""`planc checkpoint push`: exports that exist, to repositories of the Hugging Face Hub."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from planc.cli.support.exits import UsageError, require_libraries
from planc.cli.versions.revisions import plan_of_run
from planc.graph.artifact import graph_of
from planc.graph.ops import PushExport
from planc.hub.names import is_repository
from planc.runtime.files.run_files import EXPORT, PLAN_NAME
from planc.runtime.push import DEFAULT_BRANCH, PushError, push


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "export",
        metavar="EXPORT",
        help="a run directory, for the exports that its plan pushes, or an export's directory",
    )
    parser.add_argument(
        "--to", metavar="ORG/NAME", help="the repository of an export's directory (default: as in the plan)"
    )
    parser.add_argument("--public", action="store_true", help="with --to: the repository is public")
    parser.add_argument(
        "--revision", metavar="BRANCH", help=f"with --to: the branch (default: {DEFAULT_BRANCH})"
    )


def pushed(arguments: Namespace) -> Iterator[str]:
    """Push each export, and yield a note of it. UsageError for one that is missing or was not pushed."""
    require_libraries("planc checkpoint push", "huggingface_hub")
    for folder, op in _pushes(arguments):
        try:
            address = push(folder, op)
        except PushError as error:
            raise UsageError(f"cannot push {folder} to {op.target}: {error}") from error
        yield f"pushed {folder} to {op.target}: {address}"


def _pushes(arguments: Namespace) -> list[tuple[Path, PushExport]]:
    folder, repository = Path(arguments.export), arguments.to
    if repository is None:
        if arguments.public or arguments.revision:
            raise UsageError("--public and --revision need --to: a run directory's plan states both")
        return _of_run(folder)
    if not is_repository(repository):
        raise UsageError(f'--to must be ORG/NAME, not "{repository}"')
    private, revision = not arguments.public, arguments.revision or DEFAULT_BRANCH
    op = PushExport(when="end", export="hf", repository=repository, private=private, revision=revision)
    return [(folder, op)]


def _of_run(folder: Path) -> list[tuple[Path, PushExport]]:
    if not (folder / PLAN_NAME).exists():
        raise UsageError(f"{folder} is not a run directory\npush an export's directory with --to ORG/NAME")
    pushes = [op for op in graph_of(plan_of_run(folder)).save if isinstance(op, PushExport)]
    if not pushes:
        raise UsageError(
            f"the plan of {folder} pushes no export\n"
            f"push one with `planc checkpoint push {folder / EXPORT / 'hf'} --to ORG/NAME`"
        )
    return [(folder / EXPORT / op.export, op) for op in pushes]
