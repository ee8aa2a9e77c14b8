"""`planc launch`."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, assert_never

from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.options import (
    add_gpu_argument,
    add_plan_argument,
    add_run_dir_argument,
    add_set_argument,
)
from planc.devices.hardware import Device
from planc.graph.artifact import ArtifactError, graph_of, load
from planc.graph.graph import Graph
from planc.launchers import kubernetes
from planc.launchers.job import (
    GRACE_SECONDS,
    Endpoint,
    Job,
    LaunchError,
    Nodes,
    Shrinking,
    job_of,
    place,
    read_endpoint,
    run_arguments,
)
from planc.launchers.slurm import SlurmOptions, slurm_script
from planc.launchers.torchrun import accelerate_lines, torchrun_lines
from planc.plan.elastic_meshes import smaller_plans
from planc.plan.spec import Plan
from planc.runtime.process import needs_shared_folder
from planc.source import SourceFile

DESCRIPTION = """\
Print what starts a plan: for torchrun or accelerate a command per node, first node first; for Slurm a batch
script; for Kubernetes a manifest. planc checks the plan first, and takes from it the number of ranks, the
ranks per node, and whether they use devices. It starts nothing."""

EPILOG = """\
examples:
  planc launch quickstart.plan --nodes 1
  planc launch llama.plan --rdzv-endpoint node0:29500 | sed -n 2p     (the second node's command)
  planc launch llama.plan --form slurm --cpus-per-node 96 --sbatch time=24:00:00 > llama.sbatch
  planc launch llama.plan --form kubernetes --name llama --image registry/train:1 \\
    --volume shared:/shared --run-dir /shared/runs/llama > llama.yaml"""

_OPEN_STORE = """\
note: torchrun's store on the first node listens on all network interfaces, without authentication:
keep its port inside a trusted network"""
_Value = TypeVar("_Value")


class Form(StrEnum):
    """Programs and files that start processes on nodes."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


_ONLY_FOR = {
    "rdzv_endpoint": (Form.TORCHRUN, Form.ACCELERATE),
    "name": (Form.SLURM, Form.KUBERNETES),
    "cpus_per_node": (Form.SLURM, Form.KUBERNETES),
    "sbatch": (Form.SLURM,),
    "image": (Form.KUBERNETES,),
    "volume": (Form.KUBERNETES,),
    "gpu_resource": (Form.KUBERNETES,),
}
"""Options that only some forms read."""
_VENDORS = {"mi": "amd.com/gpu"}
"""Kubernetes resources by the start of a device's name; all other known devices are NVIDIA's."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan's launch requirements; all but the graph are None for a compiled plan."""

    graph: Graph
    plan: Plan | None = None
    devices_per_node: int | None = None
    device: Device | None = None


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_argument(parser, help="a .plan file, or an artifact from `planc compile`")
    forms = [form.value for form in Form]
    parser.add_argument(
        "--form",
        choices=forms,
        default=Form.TORCHRUN.value,
        metavar="FORM",
        help=f"{', '.join(forms)} (default: torchrun)",
    )
    parser.add_argument(
        "--nodes",
        type=_number,
        metavar="N",
        help="number of nodes, if the plan does not set mesh.devices_per_node",
    )
    add_run_dir_argument(parser)
    add_set_argument(parser)
    add_gpu_argument(parser)
    parser.add_argument(
        "--rdzv-endpoint",
        type=_read(read_endpoint, "HOST:PORT"),
        metavar="HOST:PORT",
        help="torchrun, accelerate: address where the first node listens; required for several nodes",
    )
    parser.add_argument(
        "--meet-elsewhere",
        action="store_true",
        help="torchrun, elastic plans: --rdzv-endpoint is outside the job's nodes, so any node can fail; "
        "the last line printed is the command for that machine",
    )
    parser.add_argument(
        "--grace-seconds",
        type=_number,
        default=GRACE_SECONDS,
        metavar="N",
        help=f"time that ranks get to save and exit after a signal (default: {GRACE_SECONDS})",
    )
    _add_cluster_arguments(parser)


def _add_cluster_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="slurm, kubernetes: job name (default: the plan's)")
    parser.add_argument(
        "--cpus-per-node",
        type=_number,
        metavar="N",
        help="slurm (required), kubernetes: CPUs to request per node",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        metavar="NAME=VALUE",
        help="slurm: an sbatch option, such as time=24:00:00; can be repeated",
    )
    parser.add_argument(
        "--image", metavar="IMAGE", help="kubernetes (required): image with planc, the plan and its inputs"
    )
    parser.add_argument(
        "--volume",
        type=_read(kubernetes.read_volume, "CLAIM:/PATH"),
        metavar="CLAIM:/PATH",
        help="kubernetes: a PersistentVolumeClaim that all pods share, and where to mount it; required if "
        "the plan saves checkpoints",
    )
    parser.add_argument(
        "--gpu-resource",
        type=_read(kubernetes.read_resource, "a resource"),
        metavar="NAME",
        help="kubernetes: resource name to request (default: that of the plan's device, as nvidia.com/gpu)",
    )


def run(arguments: Namespace) -> int:
    """0 once printed; as `check` for a plan with errors, which go to stderr; 2 for an impossible launch."""
    form = Form(arguments.form)
    _require_fitting(arguments, form)
    settings = plans.settings(arguments)
    if arguments.plan.endswith(".json"):
        planned = _Planned(_compiled(arguments.plan, settings))
    else:
        checked = plans.check(arguments.plan, settings=settings)
        draft = plans.require_sound(checked)
        plan = draft.bound.plan
        device = plan.hardware.gpu if plan.hardware else None
        planned = _Planned(draft.compiled, plan, plan.mesh.devices_per_node, device)
    try:
        text = _text(form, arguments, planned=planned, settings=settings)
    except LaunchError as error:
        raise UsageError(f"{error.message}\nhelp: {error.help}") from error
    print(text, end="")
    if not arguments.meet_elsewhere:
        print(f"planc: {_OPEN_STORE}", file=sys.stderr)
    return CLEAN


def _text(form: Form, arguments: Namespace, *, planned: _Planned, settings: Sequence[SourceFile]) -> str:
    graph = planned.graph
    nodes = place(
        graph.world_size,
        devices_per_node=planned.devices_per_node,
        device=planned.device,
        num_nodes=arguments.nodes,
    )
    texts = [source.text for source in settings]
    run = run_arguments(arguments.plan, settings=texts, run_dir=_run_dir(arguments))
    shrinking = _shrinking(planned, nodes, form)
    grace = arguments.grace_seconds
    name = arguments.name or graph.name
    job = job_of(name, nodes=nodes, run=run, shrinking=shrinking, grace_seconds=grace)
    if arguments.meet_elsewhere:
        _require_elastic(job, arguments.rdzv_endpoint)
        job = replace(job, meets_elsewhere=True)
    match form:
        case Form.TORCHRUN:
            return _lines(torchrun_lines(job, endpoint=arguments.rdzv_endpoint))
        case Form.ACCELERATE:
            return _lines(accelerate_lines(job, endpoint=arguments.rdzv_endpoint))
        case Form.SLURM:
            cpus = _required(
                arguments.cpus_per_node, "--cpus-per-node N; otherwise Slurm gives each task one CPU"
            )
            options = SlurmOptions(cpus, tuple(arguments.sbatch or ()))
            return slurm_script(job, options, uses_devices=_uses_devices(planned))
        case Form.KUBERNETES:
            return _manifest(job, arguments, planned=planned)
    assert_never(form)


def _require_elastic(job: Job, endpoint: Endpoint | None) -> None:
    """LaunchError for a job that can't survive the loss of a node."""
    if job.shrinking is None or endpoint is None:
        raise LaunchError(
            "--meet-elsewhere needs an elastic plan on several nodes, and --form torchrun",
            help="leave it out: this run needs all of its nodes anyway",
        )


def _shrinking(planned: _Planned, nodes: Nodes, form: Form) -> Shrinking | None:
    """The elasticity for torchrun; None with a note on stderr for forms that start all nodes or none."""
    plan = planned.plan
    if plan is None or plan.elastic is None:
        return None
    if form is not Form.TORCHRUN:
        text = (
            f"--form {form} starts all {nodes.num_nodes} nodes or none, so the `elastic` block has no effect"
        )
        print(f"planc: {text}", file=sys.stderr)
        return None
    fewest = min(smaller.mesh.world_size for smaller in smaller_plans(plan))
    return Shrinking(-(-fewest // nodes.ranks_per_node), plan.elastic.max_restarts)


def _run_dir(arguments: Namespace) -> str | None:
    return str(arguments.run_dir) if arguments.run_dir else None


def _manifest(job: Job, arguments: Namespace, *, planned: _Planned) -> str:
    image = _required(arguments.image, "--image IMAGE, with planc, the plan and its inputs")
    if needs_shared_folder(planned.graph):
        kubernetes.require_kept(_run_dir(arguments), volume=arguments.volume)
    resource = _gpu_resource(arguments.gpu_resource, planned.device) if _uses_devices(planned) else None
    options = kubernetes.KubernetesOptions(image, resource, arguments.volume, arguments.cpus_per_node)
    return kubernetes.kubernetes_manifest(job, options)


def _uses_devices(planned: _Planned) -> bool:
    """Whether ranks use devices. LaunchError if the plan leaves that to the machine."""
    backend = planned.graph.init_mesh.backend
    if backend == "auto" and planned.device is None:
        raise LaunchError(
            "the plan does not set whether it runs on devices or CPUs",
            help="set `mesh.backend` to `nccl` or `gloo`, or pass --gpu NAME",
        )
    return backend != "gloo"


def _gpu_resource(given: str | None, device: Device | None) -> str:
    if given is not None:
        return given
    if device is None or device.name == "device":
        raise LaunchError(
            "the plan does not name its device, so the Kubernetes resource is unknown",
            help="pass --gpu-resource nvidia.com/gpu or amd.com/gpu, or --gpu NAME",
        )
    return next((name for start, name in _VENDORS.items() if device.name.startswith(start)), "nvidia.com/gpu")


def _compiled(path: str, settings: Sequence[SourceFile]) -> Graph:
    """The graph of an artifact; UsageError for settings, which it can't take."""
    if settings:
        raise UsageError("a compiled plan takes no settings: compile the plan again with them")
    try:
        return graph_of(load(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ArtifactError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _require_fitting(arguments: Namespace, form: Form) -> None:
    """UsageError for an option of another form."""
    for name, forms in _ONLY_FOR.items():
        if getattr(arguments, name) is not None and form not in forms:
            raise UsageError(f"--{name.replace('_', '-')} needs --form {' or '.join(forms)}")


def _required(value: _Value | None, meaning: str) -> _Value:
    if value is None:
        raise LaunchError("the plan does not describe the cluster", help=f"pass {meaning}")
    return value


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,5}", text, re.ASCII):
        raise ArgumentTypeError(f"`{text}` is not a positive integer")
    return int(text)


def _read(reader: Callable[[str], _Value], meaning: str) -> Callable[[str], _Value]:
    def read(text: str) -> _Value:
        try:
            return reader(text)
        except ValueError:
            raise ArgumentTypeError(f"`{text}` is not {meaning}") from None

    return read
