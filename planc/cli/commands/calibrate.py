"""`planc calibrate`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from planc.checks.run.does_not_fit import CODE as DOES_NOT_FIT
from planc.cli.support import options, plans
from planc.cli.support.exits import CLEAN, UsageError
from planc.estimate.calibration import Calibration, dumps, loads, step_seconds
from planc.estimate.expectation import step_expectation
from planc.estimate.scale import calibrate
from planc.estimate.step_work import step_work
from planc.graph.graph import plan_hash
from planc.runtime.files.plain_files import read_utf8
from planc.runtime.files.run_files import MAX_PLAN_BYTES, METRICS_NAME, PLAN_NAME
from planc.runtime.run_directory.metrics_file import read_lines
from planc.show.times import no_time
from planc.strict_json import loads as loads_json

DESCRIPTION = """\
Measure how fast a machine is compared with what planc expects, for `planc estimate --calibration`.

planc takes the median of `seconds` in the run's metrics.jsonl, without the first steps. A run that mostly
computes gives the scale of compute, one that mostly communicates the scale of communication. To get both,
calibrate with two runs and the same output file. The file also records the machine, the device and the
date."""

EPILOG = """\
examples:
  planc calibrate llama.plan runs/llama --gpu h100 --machine "cluster a, 8 x H100" -o cluster-a.json
  planc estimate llama.plan --gpu h100 --calibration cluster-a.json"""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser, help="the plan that ran")
    parser.add_argument("run", type=Path, metavar="DIR", help="run directory")
    options.add_set_argument(parser)
    options.add_gpu_argument(parser)
    parser.add_argument("--machine", required=True, metavar="NAME", help="your name for the machine")
    options.add_output_argument(parser, help="calibration file to write")


def run(arguments: Namespace) -> int:
    """0 once written; UsageError for a run of another plan or device; as `check` for a plan with errors."""
    checked = plans.check(arguments.plan, settings=plans.settings(arguments))
    draft = plans.require_sound(checked, but=[DOES_NOT_FIT])
    graph, plan, inventory = draft.graph, draft.bound.plan, draft.bound.inventory
    if plan.hardware is None:
        raise UsageError("set the run's device with --gpu, or in a `hardware` block")
    device, folder = plan.hardware.gpu, arguments.run
    _require_same(folder, plan_hash(graph))
    step, node = step_work(graph, inventory, draft.estimate), plan.mesh.devices_per_node
    if step_expectation(step, device, devices_per_node=node) is None:
        raise UsageError(no_time(step, device))
    metrics = folder / METRICS_NAME
    try:
        lines = _logged(metrics)
        _require_device(lines, device=device.name)
        seconds = step_seconds(lines)
        date = datetime.fromtimestamp(metrics.stat().st_mtime, UTC).date().isoformat()
        measured = calibrate(
            step,
            device,
            seconds=seconds,
            machine=arguments.machine,
            date=date,
            devices_per_node=node,
        )
        measured = _with_earlier(measured, arguments.output)
        arguments.output.write_text(dumps(measured), encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{metrics}: {error}") from None
    sys.stdout.write(f"{arguments.output}: {measured.source}, from {seconds:.4g} s per step\n")
    return CLEAN


def _logged(metrics: Path) -> list[str]:
    """The lines of a run's metrics; ValueError for a damaged line, OSError unless it is a regular file."""
    lines = []
    for number, line in enumerate(read_lines(metrics), 1):
        if line is None:
            raise ValueError(f"line {number} is damaged")
        lines.append(line.text.decode())
    return lines


def _require_device(lines: list[str], *, device: str) -> None:
    """ValueError for a run on CPUs, which log the memory of a process, not of a device's allocator."""
    if any(loads_json(line).get("memory_kind") == "process" for line in lines):
        raise ValueError(f"the run used CPUs, so it can't calibrate {device}: pass a run on {device}")


def _require_same(folder: Path, digest: str) -> None:
    """UsageError unless the directory is of a run of this exact plan."""
    try:
        ran = loads_json(read_utf8(folder / PLAN_NAME, max_bytes=MAX_PLAN_BYTES))["plan_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"`{folder}` is not a run directory: plan.json is missing or invalid") from None
    if ran != digest:
        raise UsageError(
            f"`{folder}` ran plan_hash {str(ran)[:12]}, this plan is {digest[:12]}: pass the run's --set"
        )


def _with_earlier(measured: Calibration, path: Path) -> Calibration:
    """The measurement, with the other scale kept from an earlier run on the same machine."""
    if not path.exists():
        return measured
    earlier = loads(path.read_text(encoding="utf-8"))
    if (earlier.machine, earlier.device) != (measured.machine, measured.device):
        raise ValueError(f"{path} is for {earlier.machine}, {earlier.device}: choose another file")
    return replace(
        measured,
        compute_scale=measured.compute_scale or earlier.compute_scale,
        communication_scale=measured.communication_scale or earlier.communication_scale,
        launch_seconds=measured.launch_seconds or earlier.launch_seconds,
    )
