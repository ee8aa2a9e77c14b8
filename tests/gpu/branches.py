"""Every function of planc whose code names CUDA, and the step that runs it on a device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.site import ROOT


@dataclass(frozen=True, slots=True)
class Claim:
    """`where` is `path::function`, without `planc/`; `step` runs it."""

    where: str
    step: str


_BY_STEP: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "nccl-fsdp",
        (
            "cli/running/opening.py::_watch_others",
            "cli/running/opening.py::run_of",
            "estimate/at_intervals.py::predictions",
            "cli/running/opening.py::count_first_step",
            "cli/running/watching.py::keep_watch",
            "estimate/at_intervals.py::_logged",
            "estimate/at_intervals.py::at_intervals",
            "runtime/torch/agreement/surroundings.py::_settings",
            "runtime/torch/agreement/agree.py::_device",
            "runtime/torch/reporting/metrics.py::_most_of_any_rank",
        ),
    ),
    (
        "train",
        (
            "cli/running/banner.py::banner",
            "graph/ops/optimizer.py::implementation_on",
            "runtime/torch/attention/asking.py::missing_kernels",
            "runtime/torch/backend.py::started",
            "runtime/torch/copies.py::to_device",
            "runtime/torch/copies.py::__init__",
            "runtime/torch/parallel/gradients.py::sums_in_blocks",
            "runtime/torch/parallel/mesh.py::choose_device",
            "runtime/torch/parallel/mesh.py::connect",
            "runtime/torch/reporting/metrics.py::log",
            "runtime/torch/reporting/metrics.py::_metrics",
            "runtime/torch/reporting/metrics.py::_memory_bytes",
            "runtime/torch/reporting/instruments.py::module",
            "runtime/torch/reporting/instruments.py::__init__",
            "runtime/torch/reporting/instruments.py::_now",
            "runtime/torch/reporting/instruments.py::__post_init__",
            "runtime/torch/run.py::has_queue",
            "runtime/torch/run.py::to_device",
            "runtime/torch/training/forward_backward.py::_seed",
        ),
    ),
    (
        "experts",
        ("runtime/torch/training/balance.py::summed", "runtime/torch/training/expert_load.py::summed"),
    ),
    (
        "doctor",
        (
            "doctor/devices.py::_built_for",
            "doctor/devices.py::_devices",
            "doctor/devices.py::_backends",
            "doctor/torch_probe.py::facts",
        ),
    ),
    (
        "memory",
        (
            "estimate/states.py::update_bytes",
            "runtime/rehearsal/backend.py::_allocate_copies",
        ),
    ),
    (
        "compile",
        (
            "runtime/compilers.py::find_compiler",
            "runtime/compilers.py::unusable_inductor",
        ),
    ),
    (
        "ring-kernel",
        (
            "devices/attention_kernels.py::head_dim_multiple",
            "runtime/torch/attention/asking.py::reasons",
            "runtime/torch/attention/kernels.py::block_forward",
            "runtime/torch/attention/kernels.py::block_backward",
            "runtime/torch/private.py::module",
        ),
    ),
    (
        "async-save",
        (
            "runtime/torch/checkpoint/background.py::__init__",
            "runtime/torch/checkpoint/background.py::_on_stream",
            "runtime/torch/checkpoint/background.py::allocate",
            "runtime/torch/checkpoint/background.py::begin",
            "runtime/torch/sampling.py::sample",
        ),
    ),
    (
        "offload-activations",
        (
            "runtime/torch/training/offloading.py::__init__",
            "runtime/torch/training/offloading.py::_copied",
            "runtime/torch/training/offloading.py::_wait",
        ),
    ),
    (
        "dropout",
        (
            "modeling/draws.py::_block",
            "runtime/torch/dropout/attach.py::_masking",
            "runtime/torch/dropout/masking.py::module",
            "runtime/torch/dropout/masking.py::begin",
        ),
    ),
    (
        "offload",
        ("runtime/torch/parallel/fsdp.py::shard_fully",),
    ),
    (
        "profile",
        (
            "runtime/torch/reporting/profile.py::require_traceable",
            "runtime/torch/reporting/profile.py::start_profile",
        ),
    ),
    (
        "parity",
        (
            "verify/ranks.py::counted_first_step",
            "verify/ranks.py::started",
            "verify/verify.py::verify",
            "verify/verify.py::_require_devices",
        ),
    ),
)
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (Claim(where, step) for step, wheres in _BY_STEP for where in wheres),
        key=lambda claim: claim.where,
    )
)


def branches(package: Path = ROOT / "planc") -> list[str]:
    """`path::function` of all code that names CUDA, NCCL or a device's queue; docstrings do not count."""
    found: dict[str, None] = {}
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(package).as_posix()
        for function in _naming(tree, "module"):
            found[f"{name}::{function}"] = None
    return [*found]


def _naming(node: ast.AST, function: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if _names_cuda(child):
            yield inside
        yield from _naming(child, inside)


def _names_cuda(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            words = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
            return bool({"cuda", "nccl"} & {one for one in words if isinstance(one, str)})
        case ast.Attribute(attr="cuda", value=ast.Name(id="torch")):
            return True
        case ast.Attribute(attr="has_queue" | "is_cuda"):
            return True
        case ast.Name(
            id="is_cuda" | "has_queue" | "has_cuda" | "is_pinned" | "has_nccl" | "flash_attention_cuda"
        ):
            return True
        case ast.Attribute(attr=str(name)):
            return name.startswith("flash_attention_cuda")
        case ast.If(test=ast.Compare()) | ast.IfExp(test=ast.Compare()):
            # `!= "cpu"`, and what follows a return for the CPU.
            return any(isinstance(one, ast.Constant) and one.value == "cpu" for one in ast.walk(node.test))
    return False
