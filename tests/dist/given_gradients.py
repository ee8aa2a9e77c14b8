"""Gradients that depend on nothing but the parameter and the step, and meshes that train by them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from planc.graph.op import Op
from planc.graph.ops import StepOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Task, train_rank

NUM_STEPS = 10
MESHES: dict[str, dict[str, Any]] = {
    "1": {},
    "dp_shard": {"mesh": {"dp_shard": 2}},
    "dp_shard 4": {"mesh": {"dp_shard": 4}},
    "tp": {"mesh": {"tp": 2}},
    "dp_shard x tp": {"mesh": {"dp_shard": 2, "tp": 2}},
    "dp_replicate x dp_shard": {"mesh": {"dp_replicate": 2, "dp_shard": 2}},
    "dp_replicate": {"mesh": {"dp_replicate": 2}, "replicas": "whole"},
    "dp_shard x cp": {"mesh": {"dp_shard": 2, "cp": 2}},
    "dp_shard x cp x tp": {"mesh": {"dp_shard": 2, "cp": 2, "tp": 2}},
    "pp x dp_shard": {"mesh": {"pp": 2, "dp_shard": 2}, "micro_batch": 1},
    "dp_shard 8": {"mesh": {"dp_shard": 8}},
    "compiled": {"mesh": {"dp_shard": 2, "tp": 2}, "is_compiled": True},
}


def given_gradient(name: str, shape: torch.Size, *, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
    return torch.randn(shape, generator=generator)


def give_gradients(state: State, op: Op, position: Position) -> None:
    """Puts this rank's parts of gradients that depend on nothing but the parameter and the step."""
    if not isinstance(op, StepOptimizer):
        return
    for name, parameter in state[nn.Module].named_parameters():
        whole = given_gradient(name, parameter.shape, step=position.step)
        if isinstance(parameter, DTensor):
            shape, offset = compute_local_shape_and_global_offset(
                whole.shape, parameter.device_mesh, parameter.placements
            )
            part = whole[tuple(slice(at, at + n) for at, n in zip(offset, shape, strict=True))].contiguous()
            parameter.grad = DTensor.from_local(
                part,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
        else:
            parameter.grad = whole


def trained(
    workspace: Path,
    folder: Path,
    *,
    kind: str,
    model: str = "llama",
    settings: Sequence[str] = (),
    **options: Any,
) -> dict[str, Tensor]:
    """The weights of a plan with an optimizer after its steps."""
    given = (
        f"optimizer.kind={kind}",
        "optimizer.clip_grad_norm=none",
        "optimizer.schedule=constant()",
        f"train.steps={NUM_STEPS}",
        *settings,
    )
    case = Case("given", model=model, settings=given, **options)
    task = Task(compile_case(case, workspace=workspace), workspace, folder, before_op=give_gradients)
    return run_ranks(train_rank, case.world_size, task, init=False)[0].final
