"""Checks of system limits, the compiler and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from planc.diagnostics import Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.doctor.machine import Machine
from planc.doctor.needs import Needs
from planc.runtime.compilers import find_compiler, unusable_inductor
from planc.source import SourceFile, Span
from planc.tables import format_bytes

_OWN_FILES = 256
"""Files that a process opens in addition to its connections: libraries, shards, logs."""
_FILES_A_RANK = 4
"""Connections to each other rank: gloo connects all pairs of a group, and a rank is in a few large groups."""
_SHARED_MEMORY_BYTES = 2**30
"""NVIDIA's recommendation for containers with NCCL; Docker's default is 64 MiB."""
_RELEASED = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))
"""planc was released later, so an earlier clock is wrong."""


def system_checks(
    machine: Machine, environment: Mapping[str, str], *, needs: Needs | None, has_devices: bool
) -> Iterator[Check]:
    """Check open files, shared memory, the compiler of a plan that needs one, and the clock."""
    if machine.num_open_files is not None:
        yield _open_files(machine.num_open_files, num_ranks=needs.world_size if needs else 1)
    if machine.shared_memory_bytes is not None:
        yield _shared_memory(machine.shared_memory_bytes, is_needed=has_devices)
    if needs is not None and needs.compiler is not None:
        yield _compiler(environment, device="cuda" if has_devices else "cpu", plan=needs.compiler)
    yield _clock(machine.now)


def _open_files(found: int, *, num_ranks: int) -> Check:
    wanted = _OWN_FILES + _FILES_A_RANK * (num_ranks - 1)
    observed = SourceFile("open files", str(found))
    required, reason = f"about {wanted}", "a process connects to every other rank"
    # -1: no limit.
    if found < 0 or found >= wanted:
        return Check(Section.SYSTEM, observed, required, reason)
    text = f"1 rank needs about {wanted}" if num_ranks == 1 else f"{num_ranks} ranks need about {wanted}"
    help = f"run `ulimit -n {wanted}`, or set LimitNOFILE of the service that starts the ranks"
    problem = codes.LOW_LIMIT.at(observed.whole(), text, help=help)
    return Check(Section.SYSTEM, observed, required, reason, (problem,))


def _shared_memory(num_bytes: int, *, is_needed: bool) -> Check:
    observed = SourceFile("/dev/shm", format_bytes(num_bytes))
    if not is_needed:
        return Check(Section.SYSTEM, observed)
    required, reason = (
        format_bytes(_SHARED_MEMORY_BYTES),
        "nccl exchanges data between ranks of a machine there",
    )
    if num_bytes >= _SHARED_MEMORY_BYTES:
        return Check(Section.SYSTEM, observed, required, reason)
    help = "start the container with --shm-size=1g or more, or --ipc=host"
    problem = codes.LOW_LIMIT.at(observed.whole(), "nccl may fail or be slow", help=help)
    return Check(Section.SYSTEM, observed, required, reason, (problem,))


def _compiler(environment: Mapping[str, str], *, device: str, plan: Span) -> Check:
    observed = SourceFile("compiler", find_compiler(device, environment) or "none found")
    required, reason = "one that inductor can call", "torch.compile builds its kernels on this machine"
    unusable = unusable_inductor(device, environment)
    if unusable is None:
        return Check(Section.SYSTEM, observed, required, reason)
    text, help = unusable
    asked = (Label(plan, "the plan compiles modules"),)
    problem = codes.NO_COMPILER.at(observed.whole(), text, secondary=asked, help=help)
    return Check(Section.SYSTEM, observed, required, reason, (problem,))


def _clock(now: float) -> Check:
    observed = SourceFile("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))
    if now >= _RELEASED:
        return Check(Section.SYSTEM, observed)
    problem = codes.CLOCK_OFF.at(
        observed.whole(),
        "the system clock is earlier than planc's release date",
        help="start a time service (chrony, ntpd)",
    )
    return Check(Section.SYSTEM, observed, problems=(problem,))
