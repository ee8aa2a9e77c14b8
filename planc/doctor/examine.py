"""All checks of a machine and a launch as one report, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planc.diagnostics import Severity
from planc.diagnostics.machine import DIALECT, closed, diagnostic_schema, render_json
from planc.doctor.devices import device_checks, num_here, uses_cuda
from planc.doctor.examination import Check, Report, Section, Status
from planc.doctor.machine import Machine, Storage
from planc.doctor.needs import Needs, push_checks
from planc.doctor.packages import package_checks
from planc.doctor.storage import Input, input_checks, storage_checks
from planc.doctor.system import system_checks
from planc.doctor.variables import Surroundings, launch_checks, malformed, unread, variable_checks
from planc.runtime.run_directory.obstacles import Obstacle
from planc.tables import render_table


@dataclass(frozen=True, slots=True)
class Found:
    """Facts to check.

    `malformed` are planc's errors about its own variables, `unread` unknown variables with the prefix PLANC_.
    The run directory has `num_kept` checkpoints already, and `obstacles` that would keep the run from saving.
    """

    environment: Mapping[str, str]
    versions: Mapping[str, str | None]
    machine: Machine
    storage: Storage | None = None
    num_kept: int = 0
    obstacles: tuple[Obstacle, ...] = ()
    inputs: tuple[Input, ...] = ()
    malformed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    has_hub_token: bool = False


def examine(found: Found, *, needs: Needs | None = None) -> Report:
    """The report on a machine, checked against a plan's needs if there is a plan."""
    return Report(tuple(_checks(found, needs)))


def _checks(facts: Found, needs: Needs | None) -> Iterator[Check]:
    machine, environment = facts.machine, facts.environment
    local = num_here(machine.torch, environment, needs) if needs else None
    has_devices = uses_cuda(machine.torch, needs)
    around = Surroundings(
        interfaces=machine.interfaces,
        num_cpus=machine.num_cpus,
        has_devices=has_devices,
        num_local_ranks=local,
        has_fsdp=needs is not None and needs.has_fsdp,
    )
    trackers = needs.trackers if needs else ()
    yield from package_checks(facts.versions, is_for_run=needs is not None, trackers=trackers)
    yield from device_checks(machine, environment, needs=needs)
    yield from launch_checks(environment)
    yield from map(malformed, facts.malformed)
    yield from map(unread, facts.unread)
    yield from variable_checks(environment, around)
    yield from push_checks(needs.pushes if needs else (), environment, has_token=facts.has_hub_token)
    yield from input_checks(facts.inputs)
    if facts.storage is not None:
        num_nodes = -(-needs.world_size // local) if needs and local else 1
        yield from storage_checks(
            facts.storage,
            needs=needs,
            num_kept=facts.num_kept,
            num_nodes=num_nodes,
            obstacles=facts.obstacles,
        )
    yield from system_checks(machine, environment, needs=needs, has_devices=has_devices)


FORMAT_VERSION = 1


def report_text(report: Report) -> str:
    """One table: status, name, what was found, what is required, and why."""
    return render_table([row for section in Section for row in _rows(report, section)])


def report_data(report: Report, machine: Machine) -> dict[str, Any]:
    """The report as JSON data."""
    usable = machine.torch.backends if machine.torch else ()
    findings = json.loads(render_json(report.diagnostics))
    return {
        "format_version": FORMAT_VERSION,
        "os": machine.os,
        "backends": {name: name in usable for name in ("gloo", "nccl")},
        "checks": [_check(check) for check in report.checks],
        "diagnostics": findings["diagnostics"],
        "summary": findings["summary"],
    }


def report_schema() -> dict[str, Any]:
    """The JSON Schema of `report_data`."""
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    check = closed(
        section={"enum": [str(section) for section in Section]},
        name=text,
        found=text,
        required=text,
        reason=text,
        status={"enum": [str(status) for status in Status]},
        ok={"type": "boolean"},
        codes={"type": "array", "items": {"type": "string", "pattern": "^P[0-9]{3}$"}},
    )
    document = closed(
        format_version={"const": FORMAT_VERSION},
        os=text,
        backends=closed(gloo={"type": "boolean"}, nccl={"type": "boolean"}),
        checks={"type": "array", "items": check},
        diagnostics={"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
        summary=closed(**{str(severity): count for severity in Severity}),
    )
    return {
        "$schema": DIALECT,
        "title": "A report of planc doctor",
        **document,
        "$defs": {"diagnostic": diagnostic_schema()},
    }


def _rows(report: Report, section: Section) -> Iterator[tuple[str, ...]]:
    for check in report.checks:
        if check.section is section:
            required = f"needs {check.required}" if check.required else ""
            found = ", ".join(check.observed.lines)
            yield str(check.status), check.observed.name, found, required, check.reason


def _check(check: Check) -> dict[str, Any]:
    return {
        "section": str(check.section),
        "name": check.observed.name,
        "found": check.observed.text,
        "required": check.required,
        "reason": check.reason,
        "status": str(check.status),
        "ok": check.status is not Status.ERROR,
        "codes": [problem.code.code for problem in check.problems],
    }
