"""`planc compile`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.cli.support import options, plans
from planc.cli.support.exits import CLEAN, UsageError
from planc.graph.artifact import base_between, dump
from planc.graph.graph import UNKNOWN_STEPS, plan_hash
from planc.inventory.files import write_atomically

DESCRIPTION = """\
Compile a plan to a JSON artifact that `planc run` executes without the plan.

Relative paths stay as written in the plan. They start at the artifact's `base`: the path from the artifact's
directory to the plan's. So you can move both together, and plan_hash does not depend on where the artifact
is stored."""

EPILOG = """\
examples:
  planc compile llama.plan -o llama.json --set mesh.tp=4"""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser)
    options.add_output_argument(parser, help="file to write")
    options.add_set_argument(parser)
    options.add_world_size_argument(parser)
    options.add_quiet_argument(parser)


def run(arguments: Namespace) -> int:
    """0 once written; as `check` for a plan with errors, which go to stderr, and nothing is written."""
    settings = plans.settings(arguments)
    checked = plans.check(arguments.plan, settings=settings, world_size=arguments.world_size)
    graph = plans.require_sound(checked).compiled
    if graph.num_steps == UNKNOWN_STEPS:
        raise UsageError(
            f"the steps of its epochs are known after `planc data prepare {arguments.plan}`: run that first"
        )
    output = _output(arguments.output, plan=Path(arguments.plan))
    base = base_between(output.parent, plan_folder=Path(arguments.plan).parent)
    text = dump(graph, sources=checked.source_digests, overrides=checked.overrides, base=base)
    try:
        write_atomically(output, text=text)
    except OSError as error:
        raise UsageError(f"{arguments.output} cannot be written: {error.strerror}") from error
    if not arguments.quiet:
        print(f"{arguments.output}: plan_hash {plan_hash(graph)[:12]}", file=sys.stderr)
    return CLEAN


def _output(path: Path, *, plan: Path) -> Path:
    """The file to write, links resolved. UsageError for the plan itself, and unless it is a regular file.

    A rename onto /dev/stdout would replace the device.
    """
    try:
        output = path.resolve()
        is_replaceable = output.is_file() or not output.exists()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    if not is_replaceable:
        raise UsageError(f"{path} is not a regular file")
    if output == plan.resolve():
        raise UsageError(f"{path} is the plan itself")
    return output
