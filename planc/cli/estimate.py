"""`planc estimate`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from planc.cli import plans
from planc.cli.exits import CLEAN
from planc.estimate.estimate import estimate
from planc.graph.graph import plan_hash
from planc.show.estimate import estimate_data, estimate_text

DESCRIPTION = """\
Say what a plan needs: memory per rank, and what each rank sends in a step, by mesh dim.

A closed form from the execution graph and the model's structure. Parameters, gradients, optimizer state
and collectives are exact; activations, transients and the peak are not calibrated to any machine."""

EPILOG = """\
examples:
  planc estimate llama.plan
  planc estimate llama.plan --set mesh.tp=8 --output-format json

An `expect` block can hold a plan to it: peak_memory < 60 GiB, tp_bytes_per_step < 300 GiB."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN")
    plans.add_set_argument(parser)
    parser.add_argument("--output-format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    """0 once estimated; as `check` for a plan with errors, which go to stderr."""
    checked = plans.check(arguments.plan, settings=plans.settings(arguments))
    failure = plans.require_sound(checked)
    if failure is not None:
        return failure
    graph, inventory = checked.graph, checked.inventory
    assert graph is not None and inventory is not None, "a plan without errors has a graph and a model"
    found = estimate(graph, inventory)
    if arguments.output_format == "json":
        document = {"format_version": 1, "plan_hash": plan_hash(graph), "world_size": graph.world_size}
        sys.stdout.write(json.dumps(document | estimate_data(found), indent=2) + "\n")
    else:
        heading = f"{graph.name}  {plan_hash(graph)[:12]}  world size {graph.world_size:_}"
        sys.stdout.write(f"{heading}\n{estimate_text(found)}")
    return CLEAN
