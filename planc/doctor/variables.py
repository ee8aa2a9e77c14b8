"""Environment variables that decide how a run goes: which are read, which are wrong, which do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.diagnostics import Diagnostic
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.source import SourceFile

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"""Never shown."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A value of a variable that does harm: always, or only to runs on CUDA devices."""

    name: str
    values: tuple[str, ...]
    what: str
    needs_devices: bool = True


SHOWN: tuple[tuple[str, str], ...] = (
    ("CUDA_VISIBLE_DEVICES", "which devices PyTorch sees, and in which order"),
    ("OMP_NUM_THREADS", "threads of one process"),
    ("HF_HUB_OFFLINE", "nothing is fetched for model.hf = hub(...)"),
    ("HF_HOME", "holds the cache that model.hf = hub(...) is read from"),
    ("PYTORCH_ALLOC_CONF", "how device memory is kept"),
    ("PYTORCH_CUDA_ALLOC_CONF", "how device memory is kept"),
    ("GLOO_SOCKET_IFNAME", "the network interface of gloo"),
    ("NCCL_SOCKET_IFNAME", "the network interfaces of nccl"),
    ("NCCL_DEBUG", "how much nccl says"),
    ("PLANC_CACHE", "where inventories of models are kept"),
    ("PLANC_DEBUG", "tracebacks of failures"),
)
"""Variables with what they decide; the report lists those that are set."""

HARMS: tuple[Harm, ...] = (
    Harm("CUDA_LAUNCH_BLOCKING", ("1",), "every kernel is waited for"),
    Harm("NCCL_P2P_DISABLE", ("1",), "devices of one machine no longer copy to each other directly"),
    Harm("NCCL_SHM_DISABLE", ("1",), "ranks of one machine talk over the network"),
    Harm("NCCL_IB_DISABLE", ("1",), "nccl leaves InfiniBand and RoCE alone and uses sockets"),
    Harm("NCCL_DEBUG", ("TRACE",), "nccl logs every call"),
    Harm("TORCH_NCCL_BLOCKING_WAIT", ("1",), "the processor waits for every collective"),
    Harm("TORCH_NCCL_ASYNC_ERROR_HANDLING", ("0",), "ranks hang when one of them fails"),
    Harm("TORCH_DISTRIBUTED_DEBUG", ("DETAIL",), "every collective is compared over all ranks first", False),
)

OLD_NAMES: tuple[tuple[str, str], ...] = (
    ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
    ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
"""Old names with new ones, from torch's ProcessGroupNCCL.hpp."""

UNREAD: tuple[tuple[str, str], ...] = (
    ("IGNORE_SANITY", "nothing switches planc's checks off"),
    ("ACCELERATE_USE_FSDP", "planc does not read accelerate's settings: a plan says what is sharded"),
)
"""Variables of other launchers' making, which planc does not read."""

# `key:value`, separated by commas; a value may be a list in brackets (torch's AllocatorConfig.h).
_ALLOCATOR_SETTING = r"\s*[a-z_0-9]+\s*:\s*(?:\[[^\[\]]*\]|[^,\[\]:]+)\s*"
_ALLOCATOR = re.compile(rf"{_ALLOCATOR_SETTING}(?:,{_ALLOCATOR_SETTING})*,?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a variable's value is judged by. `num_local_ranks` is None where no plan says it."""

    interfaces: tuple[str, ...]
    num_cpus: int
    has_devices: bool
    num_local_ranks: int | None = None
    has_fsdp: bool = False


def variable_checks(environment: Mapping[str, str], around: Surroundings) -> Iterator[Check]:
    """A check for each variable that is set and decides something."""
    reasons = {
        **dict(SHOWN),
        **{harm.name: "" for harm in HARMS if harm.name not in dict(SHOWN)},
        "CUDA_DEVICE_MAX_CONNECTIONS": "queues of one device",
        **{old: "" for old, _ in OLD_NAMES},
        **{name: "" for name, _ in UNREAD},
    }
    for name, reason in reasons.items():
        if name in environment:
            observed = SourceFile(name, f"{name}={environment[name]}")
            problems = tuple(_problems(name, environment[name], observed, around))
            yield Check(Section.VARIABLES, observed, "", reason, problems)
    for name in SECRETS:
        if name in environment:
            observed = SourceFile(name, "set, not shown")
            yield Check(Section.VARIABLES, observed, "", "planc does not read it")


def malformed(message: str) -> Check:
    """The check of a variable whose value planc itself refuses, with what it says of it."""
    name = message.partition("=")[0]
    observed = SourceFile(name, message.partition(" ")[0])
    text, _, help = message.partition(": ")
    problem = codes.MALFORMED_VARIABLE.at(observed.whole(), text, help=help)
    return Check(Section.VARIABLES, observed, problems=(problem,))


def unread(name: str) -> Check:
    """The check of a variable that looks like planc's and that nothing reads."""
    observed = SourceFile(name, f"{name} is set")
    problem = codes.IDLE_VARIABLE.at(
        observed.whole(), "nothing reads it", help=f"unset {name}, or correct its name"
    )
    return Check(Section.VARIABLES, observed, problems=(problem,))


def interface_problem(environment: Mapping[str, str], interfaces: tuple[str, ...]) -> Diagnostic | None:
    """What is wrong with gloo's interface, which every run uses: for checkpoints and metrics at least."""
    value = environment.get("GLOO_SOCKET_IFNAME", "")
    absent = [name for name in value.split(",") if name and name not in interfaces]
    if not absent:
        return None
    observed = SourceFile("GLOO_SOCKET_IFNAME", f"GLOO_SOCKET_IFNAME={value}")
    text = f"GLOO_SOCKET_IFNAME: this machine has no network interface {', '.join(absent)}"
    return codes.MALFORMED_VARIABLE.at(observed.whole(), text, help=f"it has {', '.join(interfaces)}")


def _problems(name: str, value: str, observed: SourceFile, around: Surroundings) -> Iterator[Diagnostic]:
    span = observed.whole()
    for harm in HARMS:
        if harm.name == name and value in harm.values and (around.has_devices or not harm.needs_devices):
            yield codes.HARMFUL_VARIABLE.at(span, harm.what, help=f"unset {name}, but to look for a fault")
    if name in dict(OLD_NAMES):
        new = dict(OLD_NAMES)[name]
        yield codes.IDLE_VARIABLE.at(span, f"PyTorch calls it {new}", help=f"set {new} instead")
    if name in dict(UNREAD):
        yield codes.IDLE_VARIABLE.at(span, dict(UNREAD)[name], help=f"unset {name}")
    match name:
        case "OMP_NUM_THREADS":
            yield from _threads(value, observed, around)
        case "CUDA_DEVICE_MAX_CONNECTIONS" if value == "1" and around.has_fsdp and around.has_devices:
            text = "with one queue FSDP's gathers wait for computation"
            yield codes.HARMFUL_VARIABLE.at(span, text, help=f"unset {name}")
        case "PYTORCH_ALLOC_CONF" | "PYTORCH_CUDA_ALLOC_CONF" if value and not _ALLOCATOR.fullmatch(value):
            text = f"{name} is not of the form key:value,key:value"
            help = "such as expandable_segments:True,max_split_size_mb:512"
            yield codes.MALFORMED_VARIABLE.at(span, text, help=help)
        case "GLOO_SOCKET_IFNAME":
            problem = interface_problem({name: value}, around.interfaces)
            yield from (problem,) if problem else ()
        case "NCCL_SOCKET_IFNAME" if around.has_devices and not _has_interface(value, around.interfaces):
            text = f"{name}={value} leaves nccl no network interface"
            help = f"this machine has {', '.join(around.interfaces)}"
            yield codes.MALFORMED_VARIABLE.at(span, text, help=help)


def _has_interface(value: str, interfaces: tuple[str, ...]) -> bool:
    """Whether NCCL finds an interface: prefixes; `=` before them asks for whole names, `^` for all others
    (NCCL's environment variables, NCCL_SOCKET_IFNAME)."""
    is_exact, is_excluded = "=" in value[:2], "^" in value[:2]
    names = value.lstrip("=^").split(",")
    return any(
        any(one == name or (not is_exact and one.startswith(name)) for name in names) != is_excluded
        for one in interfaces
    )


def _threads(value: str, observed: SourceFile, around: Surroundings) -> Iterator[Diagnostic]:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", value, re.ASCII):
        text = "OMP_NUM_THREADS is not a number of threads, and OpenMP takes all processors instead"
        yield codes.MALFORMED_VARIABLE.at(observed.whole(), text, help="write digits only, from 1 up")
        return
    ranks = around.num_local_ranks or 1
    if int(value) * ranks > around.num_cpus and int(value) > 1:
        text = f"{ranks} ranks of {value} threads share {around.num_cpus} processors"
        best = max(1, around.num_cpus // ranks)
        yield codes.HARMFUL_VARIABLE.at(observed.whole(), text, help=f"set OMP_NUM_THREADS={best}")
