"""A small state of training whose every value tells its step, on one process or fully sharded."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from planc.runtime.checkpoint_format.manifest import Progress
from planc.runtime.torch.checkpoint import Destination, TrainingState, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
from planc.vocab import MeshDim
from tests.faults.ranks import endings

Digests = dict[str, str]

PLAN = "instead of a compiled plan, of step"
"""The facts of a checkpoint other than its tensors: nothing here reads them."""


def build(*, world_size: int) -> TrainingState:
    """Two layers and AdamW, uneven on two ranks; larger than Python's buffer: a file takes several writes."""
    model = nn.Sequential(nn.Linear(40, 33), nn.Linear(33, 7, bias=False))
    if world_size > 1:
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=(MeshDim.DP_SHARD,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return TrainingState(model, torch.optim.AdamW(model.parameters()))


def fill(state: TrainingState, *, step: int) -> None:
    """Gives every tensor the values of a step, the same on every mesh."""
    for name, tensor in named_tensors(state).items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{step} {name}".encode()))
        values = torch.randn(tensor.shape, generator=generator)
        if isinstance(tensor, DTensor):
            own = distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor.to_local().copy_(own.to_local())
        else:
            tensor.copy_(values)


def digests(state: TrainingState) -> Digests:
    """The SHA-256 of every tensor of one process's state."""
    return {
        name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in named_tensors(state).items()
    }


def expected(step: int) -> Digests:
    """What a step's state holds."""
    state = build(world_size=1)
    fill(state, step=step)
    return digests(state)


def save_step(
    state: TrainingState, *, root: Path, step: int, world_size: int, keep_last: int | None = None
) -> None:
    """Fills the state with a step's values and saves it."""
    fill(state, step=step)
    save(state, to=destination(root, step=step, world_size=world_size, keep_last=keep_last))


def destination(root: Path, *, step: int, world_size: int, keep_last: int | None = None) -> Destination:
    """`step-N` beneath `root`."""
    return Destination(
        root=root,
        progress=Progress(step=step, samples_consumed=8 * step, seed=17, data_fingerprint="data", epoch=0),
        plan_hash="plan",
        model_digest="model",
        mesh={MeshDim.DP_SHARD: world_size},
        keep_last=keep_last,
        plan=lambda folder: f"{PLAN} {step}",
    )


def save_first(rank: int, world_size: int, root: Path, steps: tuple[int, ...]) -> None:
    """A rank's part in saving some steps, faultlessly."""
    state = build(world_size=world_size)
    for step in steps:
        save_step(state, root=root, step=step, world_size=world_size)


def saved_root(root: Path, *, steps: tuple[int, ...] = (1,), world_size: int = 2) -> Path:
    """`root`, made with these steps in it."""
    for ending in endings(save_first, world_size, root, steps):
        assert ending.code == 0 and not ending.error, ending
    return root
