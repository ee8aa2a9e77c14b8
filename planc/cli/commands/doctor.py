"""`planc doctor`."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.api import Checked
from planc.capacity.draft import Draft
from planc.cli.support import options, plans
from planc.cli.support.exits import CLEAN, FINDINGS
from planc.cli.support.settings import settings_from, unknown_variables
from planc.cli.support.terminal import terminal_width, wants_color, write_view
from planc.diagnostics.human import HumanRenderer
from planc.doctor.examination import Report
from planc.doctor.examine import Found, examine, report_data, report_text
from planc.doctor.machine import read_machine, read_storage
from planc.doctor.needs import MeantFor, Needs, needs_of, pushes_of
from planc.doctor.packages import installed_versions
from planc.doctor.storage import read_inputs
from planc.graph.graph import Graph
from planc.runtime.errors import RunError
from planc.runtime.fetch import has_token
from planc.runtime.process import read_launch
from planc.runtime.run_directory.obstacles import num_kept, obstacles

DESCRIPTION = """\
Report this machine's hardware and software, and problems with them: versions, devices and backends, the
launcher's environment variables, the run directory, system limits. With a plan, also check whether this
machine can run it.

Run it where the plan will run, under the same launcher and in the same container. It prints no secrets."""

EPILOG = """\
examples:
  planc doctor
  planc doctor llama.plan --run-dir /shared/runs/llama
  srun --ntasks-per-node 1 planc doctor llama.plan --world-size 64
  planc doctor --output-format json

exit codes: 0 no errors, 1 errors that would stop a run, 2 could not run."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a .plan file to check the machine against")
    options.add_set_argument(parser)
    options.add_world_size_argument(parser)
    options.add_run_dir_argument(parser)
    options.add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """0 without errors, 1 for an error that would stop a run; as `check` for a plan with errors."""
    checked = _checked(arguments)
    draft = plans.require_sound(checked) if checked is not None else None
    found = _found(arguments, draft.compiled if draft else None)
    report = examine(found, needs=_needs(draft) if draft else None)
    if arguments.output_format == "json":
        sys.stdout.write(json.dumps(report_data(report, found.machine), indent=2) + "\n")
    else:
        _write(report, checked)
    return CLEAN if report.ok else FINDINGS


def _checked(arguments: Namespace) -> Checked | None:
    """The plan, checked against `--world-size` or this process's launch.

    Malformed variables are left to the report.
    """
    if arguments.plan is None:
        return None
    settings, _ = settings_from(arguments.set, os.environ)
    return plans.check(
        arguments.plan, settings=settings, world_size=arguments.world_size or _launched_ranks()
    )


def _launched_ranks() -> int | None:
    """The number of ranks in this process's launch; None for a single process."""
    try:
        world_size = read_launch(os.environ).world_size
    except RunError:  # the report has a finding for it
        return None
    return world_size if world_size > 1 else None


def _needs(draft: Draft) -> Needs:
    plan, device = draft.bound.plan, None
    if plan.hardware is not None:
        gpu = plan.hardware.gpu
        device = MeantFor(gpu.name, gpu.memory_bytes, plan.span("hardware.gpu"))
    return needs_of(
        draft.compiled, draft.bound.inventory, devices_per_node=plan.mesh.devices_per_node, device=device
    )


def _found(arguments: Namespace, graph: Graph | None) -> Found:
    """Look at this machine, and at a run of the graph on it: its directory and the files that it reads."""
    versions = installed_versions()
    folder = arguments.run_dir or (Path("runs") / graph.name if graph else None)
    storage = read_storage(folder) if folder is not None else None
    kept = storage.path if storage is not None and storage.refusal is None else None
    return Found(
        environment=os.environ,
        versions=versions,
        machine=read_machine(os.environ, has_torch=versions["torch"] is not None),
        storage=storage,
        num_kept=num_kept(kept) if kept else 0,
        obstacles=obstacles(kept, graph) if kept and graph else (),
        inputs=read_inputs(graph, base=Path(arguments.plan).parent) if graph else (),
        malformed=settings_from((), os.environ)[1],
        unread=unknown_variables(os.environ),
        has_hub_token=graph is not None and bool(pushes_of(graph)) and has_token(),
    )


def _write(report: Report, checked: Checked | None) -> None:
    """Print the table, then the problems found."""
    sources = {**(checked.sources if checked else {}), **report.sources}
    stream = sys.stdout
    renderer = HumanRenderer(
        sources,
        colour=wants_color(stream),
        width=terminal_width(stream),
        encoding=stream.encoding,
        observed=report.sources,
    )
    findings = renderer.render(report.diagnostics)
    write_view(report_text(report), stream=stream)
    text = findings or "no problems found"
    stream.write("\n" + text.rstrip("\n") + "\n")
