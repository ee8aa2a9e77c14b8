"""Checks of environment variables, and of how this process was started: the launcher's own variables."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.diagnostics import Diagnostic
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.runtime.errors import RunError
from planc.runtime.process import VARIABLES, Launch, read_launch
from planc.runtime.ranks.rank_claims import require_free_port
from planc.source import SourceFile, Span
from planc.tables import plural

SECRETS: tuple[tuple[str, str], ...] = (
    ("HF_TOKEN", "access to gated or private models with model.hf = hub(...), and pushes of exports"),
    ("HUGGING_FACE_HUB_TOKEN", "read when HF_TOKEN is not set"),
    ("WANDB_API_KEY", "the login for logging.tracker.wandb"),
)
"""Variables with their meaning, whose values are never shown."""


@dataclass(frozen=True, slots=True)
class Harm:
    """Values of a variable that harm a run: always, or only on CUDA devices."""

    name: str
    values: tuple[str, ...]
    what: str
    needs_devices: bool = True


SHOWN: tuple[tuple[str, str], ...] = (
    ("CUDA_VISIBLE_DEVICES", "devices that PyTorch sees, in this order"),
    ("OMP_NUM_THREADS", "threads per process"),
    ("HF_HUB_OFFLINE", "prevents downloads for model.hf = hub(...), and pushes of exports"),
    ("HF_HOME", "cache directory for model.hf = hub(...)"),
    ("PYTORCH_ALLOC_CONF", "settings of the device memory allocator"),
    ("PYTORCH_CUDA_ALLOC_CONF", "settings of the device memory allocator"),
    ("GLOO_SOCKET_IFNAME", "network interface for gloo"),
    ("NCCL_SOCKET_IFNAME", "network interfaces for nccl"),
    ("NCCL_DEBUG", "nccl's log level"),
    ("PLANC_CACHE", "directory of cached model inventories"),
    ("PLANC_DATA", "directory of prepared data"),
    ("PLANC_DEBUG", "prints tracebacks of failures"),
)
"""Variables with their meaning; the report lists those that are set."""

HARMS: tuple[Harm, ...] = (
    Harm("CUDA_LAUNCH_BLOCKING", ("1",), "every kernel launch blocks"),
    Harm("NCCL_P2P_DISABLE", ("1",), "devices of a machine can't copy to each other directly"),
    Harm("NCCL_SHM_DISABLE", ("1",), "ranks of a machine communicate over the network"),
    Harm("NCCL_IB_DISABLE", ("1",), "nccl uses sockets instead of InfiniBand or RoCE"),
    Harm("NCCL_DEBUG", ("TRACE",), "nccl logs every call"),
    Harm("TORCH_NCCL_BLOCKING_WAIT", ("1",), "the CPU waits for every collective"),
    Harm("TORCH_NCCL_ASYNC_ERROR_HANDLING", ("0",), "the other ranks hang when one fails"),
    Harm(
        "TORCH_DISTRIBUTED_DEBUG", ("DETAIL",), "every collective is first compared across all ranks", False
    ),
)

OLD_NAMES: tuple[tuple[str, str], ...] = (
    ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
    ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
"""Old names and their replacements, from torch's ProcessGroupNCCL.hpp."""

UNREAD: tuple[tuple[str, str], ...] = (
    ("IGNORE_SANITY", "planc has no way to disable its checks"),
    ("ACCELERATE_USE_FSDP", "planc does not read accelerate's settings; the plan sets what is sharded"),
)
"""Variables of other tools that planc does not read."""

# `key:value`, separated by commas; a value may be a list in brackets (torch's AllocatorConfig.h).
_ALLOCATOR_SETTING = r"\s*[a-z_0-9]+\s*:\s*(?:\[[^\[\]]*\]|[^,\[\]:]+)\s*"
_ALLOCATOR = re.compile(rf"{_ALLOCATOR_SETTING}(?:,{_ALLOCATOR_SETTING})*,?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that variables are checked against. `num_local_ranks` is None without a plan."""

    interfaces: tuple[str, ...]
    num_cpus: int
    has_devices: bool
    num_local_ranks: int | None = None
    has_fsdp: bool = False


def variable_checks(environment: Mapping[str, str], around: Surroundings) -> Iterator[Check]:
    """Check each relevant variable that is set."""
    reasons = {
        **dict(SHOWN),
        **{harm.name: "" for harm in HARMS if harm.name not in dict(SHOWN)},
        "CUDA_DEVICE_MAX_CONNECTIONS": "queues per device",
        **{old: "" for old, _ in OLD_NAMES},
        **{name: "" for name, _ in UNREAD},
    }
    for name, reason in reasons.items():
        if name in environment:
            observed = SourceFile(name, f"{name}={environment[name]}")
            problems = tuple(_problems(name, environment[name], observed, around))
            yield Check(Section.VARIABLES, observed, "", reason, problems)
    for name, reason in SECRETS:
        if name in environment:
            observed = SourceFile(name, "set, not shown")
            yield Check(Section.VARIABLES, observed, "", reason)


def malformed(message: str) -> Check:
    """The check of a planc variable with an invalid value, from its error message."""
    name = message.partition("=")[0]
    observed = SourceFile(name, message.partition(" ")[0])
    text, _, help = message.partition(": ")
    help = help or f"set {name} to a positive integer, or unset it"
    problem = codes.MALFORMED_VARIABLE.at(observed.whole(), text, help=help)
    return Check(Section.VARIABLES, observed, problems=(problem,))


def unread(name: str) -> Check:
    """The check of an unknown variable with the prefix PLANC_."""
    observed = SourceFile(name, f"{name} is set")
    problem = codes.IDLE_VARIABLE.at(
        observed.whole(), "planc reads no variable of this name", help=f"unset {name}, or correct its name"
    )
    return Check(Section.VARIABLES, observed, problems=(problem,))


def interface_problem(environment: Mapping[str, str], interfaces: tuple[str, ...]) -> Diagnostic | None:
    """A missing network interface in GLOO_SOCKET_IFNAME; every run uses gloo, at least for metrics."""
    value = environment.get("GLOO_SOCKET_IFNAME", "")
    absent = [name for name in value.split(",") if name and name not in interfaces]
    if not absent:
        return None
    observed = SourceFile("GLOO_SOCKET_IFNAME", f"GLOO_SOCKET_IFNAME={value}")
    text = f"GLOO_SOCKET_IFNAME: this machine has no network interface {', '.join(absent)}"
    return codes.MALFORMED_VARIABLE.at(observed.whole(), text, help=f"use one of {', '.join(interfaces)}")


def _problems(name: str, value: str, observed: SourceFile, around: Surroundings) -> Iterator[Diagnostic]:
    span = observed.whole()
    for harm in HARMS:
        if harm.name == name and value in harm.values and (around.has_devices or not harm.needs_devices):
            yield codes.HARMFUL_VARIABLE.at(span, harm.what, help=f"unset {name} unless you are debugging")
    if name in dict(OLD_NAMES):
        new = dict(OLD_NAMES)[name]
        yield codes.IDLE_VARIABLE.at(span, f"PyTorch renamed it to {new}", help=f"set {new} instead")
    if name in dict(UNREAD):
        yield codes.IDLE_VARIABLE.at(span, dict(UNREAD)[name], help=f"unset {name}")
    match name:
        case "OMP_NUM_THREADS":
            yield from _threads(value, observed, around)
        case "CUDA_DEVICE_MAX_CONNECTIONS" if value == "1" and around.has_fsdp and around.has_devices:
            text = "with a single queue FSDP's all-gathers wait for computation"
            yield codes.HARMFUL_VARIABLE.at(span, text, help=f"unset {name}")
        case "PYTORCH_ALLOC_CONF" | "PYTORCH_CUDA_ALLOC_CONF" if value and not _ALLOCATOR.fullmatch(value):
            text = f"{name} does not have the form key:value,key:value"
            help = "write it like `expandable_segments:True,max_split_size_mb:512`"
            yield codes.MALFORMED_VARIABLE.at(span, text, help=help)
        case "GLOO_SOCKET_IFNAME":
            problem = interface_problem({name: value}, around.interfaces)
            yield from (problem,) if problem else ()
        case "NCCL_SOCKET_IFNAME" if around.has_devices and not _has_interface(value, around.interfaces):
            text = f"{name}={value} matches no network interface"
            help = f"use one of {', '.join(around.interfaces)}"
            yield codes.MALFORMED_VARIABLE.at(span, text, help=help)


def _has_interface(value: str, interfaces: tuple[str, ...]) -> bool:
    """Whether NCCL finds an interface. A value lists prefixes; `=` makes them whole names, `^` excludes them.

    Source: NCCL's environment variables, NCCL_SOCKET_IFNAME.
    """
    is_exact, is_excluded = "=" in value[:2], "^" in value[:2]
    names = value.lstrip("=^").split(",")
    return any(
        any(interface == name or (not is_exact and interface.startswith(name)) for name in names)
        != is_excluded
        for interface in interfaces
    )


def _threads(value: str, observed: SourceFile, around: Surroundings) -> Iterator[Diagnostic]:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", value, re.ASCII):
        text = "OMP_NUM_THREADS is not a number of threads, so OpenMP would use all CPUs"
        yield codes.MALFORMED_VARIABLE.at(observed.whole(), text, help="set it to a positive integer")
        return
    ranks = around.num_local_ranks or 1
    if int(value) * ranks > around.num_cpus and int(value) > 1:
        cpus = plural(around.num_cpus, "CPU")
        text = f"{ranks} ranks with {plural(int(value), 'thread')} each share {cpus}"
        if ranks == 1:
            text = f"1 rank with {value} threads has {cpus}"
        best = max(1, around.num_cpus // ranks)
        yield codes.HARMFUL_VARIABLE.at(observed.whole(), text, help=f"set OMP_NUM_THREADS={best}")


def launch_checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Check the launch that the environment describes, and whether rank 0 can listen on its port."""
    given = [f"{name}={environment[name]}" for name in VARIABLES if name in environment]
    observed = SourceFile("launcher", "\n".join(given) or "none (a single process)")
    try:
        launch = read_launch(environment)
    except RunError as error:
        span = _line_of(observed, error.message)
        problem = codes.MALFORMED_LAUNCH.at(span, error.message, help=error.help)
        yield Check(Section.LAUNCH, observed, "", "torchrun sets these variables", (problem,))
        return
    yield Check(Section.LAUNCH, observed, "", "torchrun sets these variables")
    if launch.address is not None:
        yield _port(launch)
        yield _address(launch.address)


def _line_of(observed: SourceFile, message: str) -> Span:
    """The line of the first variable that a message names."""
    for number, line in enumerate(observed.lines, 1):
        if line.partition("=")[0] in message.split():
            return Span(observed.name, number, 1, number, len(line) + 1)
    return observed.start()


def _port(launch: Launch) -> Check:
    text = f"{launch.port}"
    if launch.rank != 0 or launch.agent_hosts_store:
        agent = "torchrun's agent listens there, on every interface"
        where = "on rank 0's machine" if launch.rank != 0 else agent
        return Check(Section.LAUNCH, SourceFile("port", f"{text}, {where}"))
    observed = SourceFile("port", text)
    try:
        require_free_port(launch)
    except RunError as error:
        problem = codes.PORT_TAKEN.at(observed.whole(), error.message, help=error.help)
        return Check(Section.LAUNCH, observed, "free", "rank 0 listens there", (problem,))
    return Check(Section.LAUNCH, observed, "free", "rank 0 listens there")


def _address(address: str) -> Check:
    observed = SourceFile("address", address)
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        help = "set MASTER_ADDR to a host name or IP address of rank 0's machine that this machine can reach"
        problem = codes.UNRESOLVED.at(observed.whole(), reason or "unknown host", help=help)
        return Check(Section.LAUNCH, observed, "a known host", "ranks connect to it", (problem,))
    return Check(Section.LAUNCH, observed, "a known host", "ranks connect to it")
