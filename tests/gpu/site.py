"""What a session runs on: the devices, the libraries, and the code itself."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from planc.devices.hardware import DEVICES
from planc.doctor.packages import PACKAGES, release

ROOT = Path(__file__).parents[2]
_CODE = ("planc/**/*.py", "examples/*.py", "tests/gpu/*.py", "tests/gpu/plans/*", "tests/bench/*.py")
_GIB = 2**30
_PROBE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Site:
    """`device` is `cuda` or `cpu`; `names` are the devices', one for each rank that a step may start."""

    device: str
    names: tuple[str, ...]
    memory_bytes: int
    """Of the smallest device; 0 on CPUs."""
    torch: str
    release: str
    """The installed release, as `planc doctor` reports it: often without the `+cu130` of `torch`."""
    cuda: str | None
    nccl: str | None
    code: str
    """A digest of planc, the scripts and the steps: results are of this code."""
    allowed: tuple[str, ...] = ()
    """Unsupported releases that the user allows, as `torch==2.11.0`."""
    commit: str | None = None
    """Of this tree; None where nobody knows."""

    @property
    def num_devices(self) -> int:
        return len(self.names)

    @property
    def num_cuda_devices(self) -> int:
        return len(self.names) if self.is_cuda else 0

    @property
    def memory_gib(self) -> float:
        """What steps that run side by side share: without what a context takes of each process."""
        return 0.97 * self.memory_bytes / _GIB if self.is_cuda else math.inf

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def key(self) -> str:
        """Results with another key are of another code, torch, device or number of devices."""
        return " | ".join((self.code, self.torch, *self.names))

    @property
    def gpu(self) -> str | None:
        """planc's name for the device, for estimates; None if planc does not know its peaks.

        CPUs take the place of an H100, so the steps that estimate run there too.
        """
        if not self.is_cuda:
            return "h100"
        name = self.names[0].lower()
        found = [one for one in DEVICES if one.partition("_")[0] in name]
        if "a100_40gb" in found:
            return "a100_40gb" if self.memory_bytes < 60 * _GIB else "a100"
        # `gb200` has `b200` in its name.
        return max(found, key=len, default=None)


class NoDeviceError(ValueError):
    """The session can't run here; the message is one line."""


def read_site(
    device: str, *, num_devices: int | None, allowed: tuple[str, ...] = (), commit: str | None = None
) -> Site:
    """This machine as a site. NoDeviceError without PyTorch, or without as many CUDA devices as wanted.

    PyTorch is asked in a process of its own: this one must hold no device memory.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.probe", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PROBE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise NoDeviceError((done.stderr.strip().splitlines() or ["PyTorch can't be asked"])[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    devices = found["devices"] if device == "cuda" else [["cpu", 0]] * (num_devices or 2)
    if not devices:
        text = f"PyTorch {found['torch']} sees no CUDA device, so there is nothing to measure here"
        raise NoDeviceError(f"make gpu: {text}")
    if num_devices is not None and len(devices) < num_devices:
        raise NoDeviceError(f"make gpu: {num_devices} devices wanted, PyTorch sees {len(devices)}")
    used = devices[:num_devices]
    return Site(
        device,
        tuple(name for name, _ in used),
        memory_bytes=min(size for _, size in used),
        torch=found["torch"],
        release=found["release"],
        cuda=found["cuda"],
        nccl=found["nccl"],
        code=code_digest(),
        # A release that is supported needs no permission, and the page names none.
        allowed=tuple(pin for pin in allowed if _is_unsupported(pin)),
        commit=commit or _commit(),
    )


def unsupported_torch(site: Site) -> str | None:
    """The pin of this PyTorch if it is below planc's floor and not allowed."""
    pin = f"torch=={site.release}"
    return pin if _is_unsupported(pin) and pin not in site.allowed else None


def _is_unsupported(pin: str) -> bool:
    name, _, version = pin.partition("==")
    floor = next((one.floor for one in PACKAGES if one.name == name), None)
    return floor is not None and release(version) < release(floor)


def _commit() -> str | None:
    """The commit of this checkout, with a `+` if files differ from it. A copy without git has none."""
    git = ("git", "-C", str(ROOT))
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "planc"], capture_output=True, text=True)
    except OSError:
        return None
    return head.stdout.strip() + "+" * bool(changed.stdout.strip()) if head.returncode == 0 else None


def code_digest(root: Path = ROOT) -> str:
    """A digest of every file that a result depends on. Works without git, and sees uncommitted changes."""
    found = hashlib.sha256()
    for pattern in _CODE:
        for path in sorted(root.glob(pattern)):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]
