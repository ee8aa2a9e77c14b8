"""`planc estimate`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.cli.support import options, plans
from planc.cli.support.exits import UsageError
from planc.cli.support.terminal import write_view
from planc.estimate.calibration import Calibration, loads
from planc.estimate.estimate import estimate
from planc.estimate.result import Estimate
from planc.estimate.step_work import step_work
from planc.graph.graph import Graph, plan_hash
from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.show.estimate import estimate_data, estimate_text
from planc.show.times import LOAD, Imbalance, Times, times_of

DESCRIPTION = """\
Estimate what a plan needs: memory per rank, bytes that each rank sends per step and mesh dim, and FLOPs.

The estimate is a closed form of the execution graph and the model's structure. Parameters, gradients,
optimizer state and collectives are exact; activations, temporary tensors and the peak are not calibrated to
any machine.

If the plan's `hardware` block or --gpu names a device, planc also reports whether the peak fits, and two
times of a step: the expected one, with its interval, and a bound that no run can beat. `planc calibrate`
narrows the interval to one machine's.

Experts that ranks share are taken to have an equal load. A line adds the peak and the expected step if those
of one rank get twice as many tokens."""

EPILOG = """\
examples:
  planc estimate llama.plan --gpu h100
  planc estimate llama.plan --gpu h100 --calibration h100.json
  planc estimate llama.plan --set mesh.tp=8 --output-format json

An `expect` block can enforce limits: peak_memory < 60 GiB, tp_bytes_per_step < 300 GiB, fits == true.
A plan that breaks one is estimated all the same; the errors follow, and the exit code is 1."""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser)
    options.add_set_argument(parser)
    options.add_gpu_argument(parser)
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="efficiencies measured by `planc calibrate`"
    )
    options.add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """Exits as `check` does. A plan that only does not fit, or breaks `expect`, is estimated all the same."""
    calibration = _calibration(arguments.calibration)
    checked = plans.check(arguments.plan, settings=plans.settings(arguments))
    draft = plans.require_figures(checked)
    graph, plan, inventory, estimated = draft.graph, draft.bound.plan, draft.bound.inventory, draft.estimate
    times = _times(estimated, graph, plan, inventory, calibration)
    imbalance = None
    if graph.experts is not None:
        uneven = estimate(graph, inventory, expert_load=LOAD)
        imbalance = Imbalance(uneven, _times(uneven, graph, plan, inventory, calibration))
    device = plan.hardware.gpu if plan.hardware else None
    if arguments.output_format == "json":
        document = {"format_version": 1, "plan_hash": plan_hash(graph), "world_size": graph.world_size}
        document |= estimate_data(estimated, device=device, times=times, imbalance=imbalance)
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        heading = f"{graph.name}  {plan_hash(graph)[:12]}  world size {graph.world_size:_}"
        text = estimate_text(estimated, device=device, times=times, imbalance=imbalance)
        write_view(f"{heading}\n{text}", stream=sys.stdout)
    return plans.finish(checked)


def _calibration(path: Path | None) -> Calibration | None:
    """Read a calibration file; UsageError for an invalid one."""
    if path is None:
        return None
    try:
        return loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None


def _times(
    estimated: Estimate, graph: Graph, plan: Plan, inventory: Inventory, calibration: Calibration | None
) -> Times | None:
    """The step's times on the plan's device; None without one. UsageError for another's calibration."""
    if plan.hardware is None:
        if calibration is not None:
            raise UsageError("--calibration needs a device: set it with --gpu, or in a `hardware` block")
        return None
    step, node = step_work(graph, inventory, estimated), plan.mesh.devices_per_node
    try:
        return times_of(step, plan.hardware.gpu, devices_per_node=node, calibration=calibration)
    except ValueError as error:
        raise UsageError(str(error)) from None
