"""Checks of devices, backends and dtypes: what PyTorch can use here, against what a plan needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.diagnostics import Diagnostic, Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.doctor.machine import Machine, TorchFacts
from planc.doctor.needs import Needs
from planc.runtime.process import names_devices
from planc.source import SourceFile
from planc.tables import format_bytes, plural
from planc.vocab import DType

_SAME_SHARE = 0.98
"""Share of a device's memory; reports of different drivers for one device differ by less."""
_BFLOAT16_CAPABILITY = (8, 0)
"""The first compute capability with bfloat16 (CUDA C++ Programming Guide, arithmetic instructions)."""


def device_checks(
    machine: Machine, environment: Mapping[str, str], *, needs: Needs | None
) -> Iterator[Check]:
    """Check what runs can compute on; `machine` must hold PyTorch's facts."""
    yield Check(Section.DEVICES, SourceFile("os", machine.os), "", "nccl runs only on Linux")
    yield Check(Section.DEVICES, SourceFile("processors", str(machine.num_cpus)))
    torch = machine.torch
    if torch is None:
        text = "unknown, because PyTorch is not installed"
        yield Check(Section.DEVICES, SourceFile("CUDA devices", text))
        return
    if torch.problem is not None:
        observed = SourceFile("import torch", torch.problem)
        help = "reinstall PyTorch: `pip install --force-reinstall torch`"
        problem = codes.BROKEN.at(observed.whole(), "`import torch` fails with this error", help=help)
        yield Check(Section.DEVICES, observed, problems=(problem,))
        return
    yield _built_for(torch, machine)
    yield _devices(torch, environment, needs=needs)
    yield _backends(torch, machine, needs=needs)
    if needs is not None:
        yield _dtypes(torch, needs)


def uses_cuda(torch: TorchFacts | None, needs: Needs | None) -> bool:
    """Whether a run of the plan, or of one with `backend = auto`, computes on CUDA devices here."""
    has_devices = torch is not None and bool(torch.devices)
    return has_devices and (needs is None or needs.backend != "gloo")


def num_here(torch: TorchFacts | None, environment: Mapping[str, str], needs: Needs) -> int:
    """Return the number of the plan's ranks that run on this machine."""
    local = environment.get("LOCAL_WORLD_SIZE", "")
    if local.isascii() and local.isdecimal():
        return int(local)
    if needs.devices_per_node is not None:
        return min(needs.devices_per_node, needs.world_size)
    if torch is not None and uses_cuda(torch, needs):
        return min(len(torch.devices), needs.world_size)
    return needs.world_size


def _built_for(torch: TorchFacts, machine: Machine) -> Check:
    if torch.cuda is None:
        text = "no CUDA: gloo works, nccl does not"
        return Check(Section.DEVICES, SourceFile("torch build", text))
    parts = [f"CUDA {torch.cuda}"]
    parts += [f"cuDNN {torch.cudnn}"] if torch.cudnn else []
    parts += [f"NCCL {torch.nccl}"] if torch.nccl else []
    parts += [f"driver {machine.driver}"] if machine.driver else []
    observed = SourceFile("torch build", ", ".join(parts))
    if torch.cuda_problem is None:
        return Check(Section.DEVICES, observed)
    help = "update NVIDIA's driver, or install a PyTorch built for it (pytorch.org)"
    problem = codes.TOO_FEW_DEVICES.at(observed.whole(), torch.cuda_problem, help=help)
    return Check(Section.DEVICES, observed, problems=(problem,))


def _devices(torch: TorchFacts, environment: Mapping[str, str], *, needs: Needs | None) -> Check:
    kinds: dict[str, int] = {}
    for device in torch.devices:
        name = f"{device.name} {format_bytes(device.memory_bytes)}"
        kinds[name] = kinds.get(name, 0) + 1
    observed = SourceFile("CUDA devices", ", ".join(f"{n} x {name}" for name, n in kinds.items()) or "0")
    problems = [*_hidden(torch, environment, observed), *_unlike(torch, observed)]
    required = ""
    if needs is not None and (needs.backend == "nccl" or uses_cuda(torch, needs)):
        here = num_here(torch, environment, needs)
        required = f"{here} for {plural(needs.world_size, 'rank')}" if here else ""
        problems += _too_few(torch, here, observed, needs=needs)
        problems += _smaller(torch, observed, needs=needs)
    return Check(Section.DEVICES, observed, required, "one rank per device", tuple(problems))


def _hidden(torch: TorchFacts, environment: Mapping[str, str], observed: SourceFile) -> Iterator[Diagnostic]:
    """CUDA_VISIBLE_DEVICES names missing devices."""
    if not names_devices(environment):
        return
    value = environment["CUDA_VISIBLE_DEVICES"]
    named = len(value.split(","))
    if named > len(torch.devices):
        names = f"CUDA_VISIBLE_DEVICES={value} names {plural(named, 'device')}"
        text = f"{names}, but PyTorch sees {len(torch.devices)}"
        help = "unset CUDA_VISIBLE_DEVICES, or name devices that `nvidia-smi` lists"
        yield codes.TOO_FEW_DEVICES.at(observed.whole(), text, help=help)


def _unlike(torch: TorchFacts, observed: SourceFile) -> Iterator[Diagnostic]:
    if any(device.is_mig for device in torch.devices):
        text = "slices of a device (MIG) have no peer-to-peer transfers between them"
        help = "use whole devices for plans with several ranks: `nvidia-smi -mig 0`"
        yield codes.UNEQUAL_DEVICES.at(observed.whole(), text, help=help)
    elif len({(device.name, device.memory_bytes) for device in torch.devices}) > 1:
        text = "all ranks do equal work, so the slowest and the smallest device limit the run"
        help = "select equal devices with CUDA_VISIBLE_DEVICES"
        yield codes.UNEQUAL_DEVICES.at(observed.whole(), text, help=help)


def _too_few(torch: TorchFacts, here: int, observed: SourceFile, *, needs: Needs) -> Iterator[Diagnostic]:
    found = len(torch.devices)
    if found == 0 or here <= found:
        return  # without devices, the backend check reports it
    text = f"{here} ranks on this machine, which has {plural(found, 'device')}"
    processes = plural(found, "process", "processes")
    help = f"set mesh.devices_per_node = {found}, or start {processes} on each machine"
    labels = (Label(observed.whole(), ""),)
    yield codes.TOO_FEW_DEVICES.at(needs.mesh, text, secondary=labels, help=help)


def _smaller(torch: TorchFacts, observed: SourceFile, *, needs: Needs) -> Iterator[Diagnostic]:
    meant = needs.device
    smallest = min((device.memory_bytes for device in torch.devices), default=None)
    if meant is None or smallest is None or smallest >= _SAME_SHARE * meant.memory_bytes:
        return
    text = f"{meant.name} has {format_bytes(meant.memory_bytes)}, a device here has {format_bytes(smallest)}"
    help = "set `hardware.gpu` to this machine's device, and check again whether the plan fits"
    labels = (Label(observed.whole(), ""),)
    yield codes.OTHER_DEVICE.at(meant.span, text, secondary=labels, help=help)


def _backends(torch: TorchFacts, machine: Machine, *, needs: Needs | None) -> Check:
    usable = [name for name in torch.backends if name != "nccl" or torch.devices]
    observed = SourceFile("backends", ", ".join(usable) or "none")
    if needs is None:
        return Check(Section.DEVICES, observed, "", "gloo for CPUs, nccl for CUDA devices")
    wanted = {"auto": "nccl" if torch.devices else "gloo"}.get(needs.backend, needs.backend)
    # Checkpoints and metrics move CPU tensors, whatever the backend of the mesh.
    missing = [name for name in dict.fromkeys((wanted, "gloo")) if name not in usable]
    problems = []
    for name in missing:
        reason = (
            f"this PyTorch has no {name}" if name not in torch.backends else "PyTorch sees no CUDA device"
        )
        if not machine.os.startswith("Linux") and name == "nccl":
            reason = f"nccl runs only on Linux, and this is {machine.os}"
        other = "set `mesh.backend = gloo`, or " if name == "nccl" else ""
        help = f"{other}use a machine and a PyTorch with {name}"
        problems.append(codes.NO_BACKEND.at(needs.mesh, reason, help=help))
    return Check(Section.DEVICES, observed, wanted, "carries collectives", tuple(problems))


def _dtypes(torch: TorchFacts, needs: Needs) -> Check:
    wanted = ", ".join(needs.dtypes)
    old = [device for device in torch.devices if device.capability < _BFLOAT16_CAPABILITY]
    observed = SourceFile("dtypes", wanted)
    if DType.BFLOAT16 not in needs.dtypes or not (old and uses_cuda(torch, needs)):
        return Check(Section.DEVICES, observed, wanted, "the plan's storage and compute dtypes")
    major, minor = old[0].capability
    text = f"bfloat16 needs compute capability 8.0, and {old[0].name} has {major}.{minor}"
    help = "use float32, or devices from Ampere on"
    problem = codes.EMULATED_DTYPE.at(needs.model, text, help=help)
    return Check(Section.DEVICES, observed, wanted, "the plan's storage and compute dtypes", (problem,))
