"""Combine all checks of a machine and a launch into one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.doctor.devices import device_checks, num_here, uses_cuda
from planc.doctor.examination import Check, Report
from planc.doctor.inputs import Input, input_checks
from planc.doctor.launching import launch_checks
from planc.doctor.machine import Machine, Storage
from planc.doctor.needs import Needs
from planc.doctor.packages import package_checks
from planc.doctor.storage import storage_checks
from planc.doctor.system import system_checks
from planc.doctor.variables import Surroundings, malformed, unread, variable_checks
from planc.runtime.run_directory.obstacles import Obstacle


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


def examine(found: Found, *, needs: Needs | None = None) -> Report:
    """The report on a machine, checked against a plan's needs if there is a plan."""
    return Report(tuple(_checks(found, needs)))


def _checks(found: Found, needs: Needs | None) -> Iterator[Check]:
    machine, environment = found.machine, found.environment
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
    yield from package_checks(found.versions, is_for_run=needs is not None, trackers=trackers)
    yield from device_checks(machine, environment, needs=needs)
    yield from launch_checks(environment)
    yield from map(malformed, found.malformed)
    yield from map(unread, found.unread)
    yield from variable_checks(environment, around)
    yield from input_checks(found.inputs)
    if found.storage is not None:
        num_nodes = -(-needs.world_size // local) if needs and local else 1
        yield from storage_checks(
            found.storage,
            needs=needs,
            num_kept=found.num_kept,
            num_nodes=num_nodes,
            obstacles=found.obstacles,
        )
    yield from system_checks(machine, environment, needs=needs, has_devices=has_devices)
