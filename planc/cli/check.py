"""`planc check`."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace

from planc.api import Checked
from planc.cli import plans
from planc.diagnostics.machine import render_concise, render_json
from planc.graph.graph import plan_hash
from planc.show.overview import essence
from planc.show.table import render_table

DESCRIPTION = """\
Find every fault of a plan before it runs: syntax, names, types, and all rules against the model's
structure. Reads no weights and needs no torch where the model's inventory is at hand."""

EPILOG = """\
examples:
  planc check llama.plan
  planc check plans/*.plan --output-format concise
  planc check llama.plan --set mesh.tp=4 --world-size 64"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    plans.add_set_argument(parser)
    plans.add_world_size_argument(parser)
    parser.add_argument("--output-format", choices=("full", "concise", "json"), default="full")


def run(arguments: Namespace) -> int:
    """0 for clean plans, 1 for errors in any, 2 where one could not be read."""
    settings = plans.settings(arguments)
    found: list[Checked] = []
    for path in arguments.plans:
        started = time.perf_counter()
        checked = plans.check(path, settings=settings, world_size=arguments.world_size)
        found.append(checked)
        if arguments.output_format == "full":
            _print_full(path, checked, seconds=time.perf_counter() - started)
    diagnostics = [diagnostic for checked in found for diagnostic in checked.diagnostics]
    match arguments.output_format:
        case "concise":
            sys.stdout.write(render_concise(diagnostics))
        case "json":
            sys.stdout.write(render_json(diagnostics))
    return plans.exit_code(diagnostics)


def _print_full(path: str, checked: Checked, *, seconds: float) -> None:
    sys.stdout.write(plans.render_findings(checked, colour=plans.wants_colour(sys.stdout)))
    if checked.bound is None or checked.graph is None:
        return
    rows = [*essence(checked.bound, checked.graph)]
    if checked.overrides:
        rows.append(("settings", ", ".join(checked.overrides)))
    sys.stdout.write(f"{path} is sound, plan_hash {plan_hash(checked.graph)[:12]}, in {seconds:.2f} s\n")
    sys.stdout.write(render_table(rows, indent="  "))
