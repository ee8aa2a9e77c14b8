"""Facts about this machine. Reading them changes nothing and does not import PyTorch into this process."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planc.runtime.cpus import num_cpus
from planc.runtime.file_systems import file_system_of
from planc.runtime.files.best_effort import retried

_PROBE_SECONDS = 120
_DRIVER_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Device:
    """A CUDA device as PyTorch sees it."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]

    @property
    def is_mig(self) -> bool:
        """Whether it is a slice of a device."""
        return " MIG " in f" {self.name} "


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The build of the installed PyTorch and its devices. `problem` is the error of an import that failed."""

    version: str = ""
    cuda: str | None = None
    cudnn: int | None = None
    nccl: str | None = None
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    cuda_problem: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine that can make a run fail. `torch` is None if it is not installed."""

    os: str
    torch: TorchFacts | None
    driver: str | None
    num_cpus: int
    num_open_files: int | None
    """The limit of open files per process; None on systems without one."""
    shared_memory_bytes: int | None
    interfaces: tuple[str, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory that may not exist yet, and its nearest existing parent.

    `refusal` is the reason why it can't be written. `clock_skew_seconds` is how far the file system's clock
    is ahead of the machine's.
    """

    path: Path
    existing: Path
    free_bytes: int
    file_system: str | None
    refusal: str | None = None
    clock_skew_seconds: float = 0.0


def read_machine(environment: Mapping[str, str], *, has_torch: bool) -> Machine:
    """Read this machine as a process with this environment sees it. Importing PyTorch takes seconds."""
    try:
        shared_memory: int | None = shutil.disk_usage("/dev/shm").total
    except OSError:  # a system without one
        shared_memory = None
    return Machine(
        os=f"{platform.system()} {platform.release()}",
        torch=_torch_facts(environment) if has_torch else None,
        driver=_driver(),
        num_cpus=num_cpus(),
        num_open_files=_num_open_files(),
        shared_memory_bytes=shared_memory,
        interfaces=interfaces(),
        now=time.time(),
    )


def _num_open_files() -> int | None:
    try:
        import resource  # missing on Windows, which has no such limit
    except ModuleNotFoundError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def interfaces() -> tuple[str, ...]:
    """The names of the network interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def read_storage(path: Path) -> Storage:
    """Examine a directory before anything is written there. Leaves no file behind."""
    existing = path.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    try:
        return retried(lambda: _storage(path, existing))
    except OSError as error:
        refusal = error.strerror or str(error)
        return Storage(path, existing, 0, None, refusal)


def _storage(path: Path, existing: Path) -> Storage:
    free = shutil.disk_usage(existing).free
    # An unnamed file, which nobody sees; only a write reveals quotas and read-only mounts.
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(b"planc")
        file.flush()
        skew = os.fstat(file.fileno()).st_mtime - time.time()
    return Storage(path, existing, free, file_system_of(existing), clock_skew_seconds=skew)


def _torch_facts(environment: Mapping[str, str]) -> TorchFacts:
    probe = Path(__file__).with_name("torch_probe.py")
    try:
        # -P: modules in the probe's directory must not shadow PyTorch's imports.
        done = subprocess.run(
            [sys.executable, "-P", str(probe)],
            env=dict(environment),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"its import took more than {_PROBE_SECONDS} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return TorchFacts(problem=last)
    facts = json.loads(done.stdout.splitlines()[-1])
    devices = tuple(
        Device(one["name"], one["memory_bytes"], (one["capability"][0], one["capability"][1]))
        for one in facts["devices"]
    )
    return TorchFacts(
        version=facts["version"],
        cuda=facts["cuda"],
        cudnn=facts["cudnn"],
        nccl=facts["nccl"],
        backends=tuple(facts["backends"]),
        devices=devices,
        cuda_problem=facts["cuda_problem"],
    )


def _driver() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, encoding="utf-8", errors="replace", timeout=_DRIVER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None
