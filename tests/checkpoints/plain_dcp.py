"""Checkpoints as torch.distributed.checkpoint writes them, by one process and by two ranks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from planc.vocab import MeshDim

STATE: dict[str, Any] = {
    "model": {
        "weight": torch.arange(12, dtype=torch.float32).reshape(4, 3) - torch.nan,
        "bias": torch.arange(3, dtype=torch.bfloat16) / 7,
        "ids": torch.arange(5),
        "scale": torch.tensor(1.5, dtype=torch.float64),
        "nothing": torch.empty(0, 3),
    },
    "optimizer": {"state": {"weight": {"step": torch.tensor(7.0)}}, "lr": 0.1},
}
TENSORS: dict[str, Tensor] = {
    **{f"model.{name}": tensor for name, tensor in STATE["model"].items()},
    "optimizer.weight.step": STATE["optimizer"]["state"]["weight"]["step"],
}
"""The state's tensors by the names that a manifest gives them."""


def save_plainly(state: dict[str, Any], folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def edit_metadata(folder: Path, edit: Callable[[Metadata], object]) -> None:
    """Changes what the pickle says; a test's own file, which it may load."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    path.write_bytes(pickle.dumps(metadata))


def save_sharded(rank: int, world_size: int, folder: Path) -> dict[str, bytes]:
    """A rank's part in saving a model and AdamW after a step; the whole tensors' bytes by planc's names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=(MeshDim.DP_SHARD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    for name, kept in moments["state"].items():
        tensors.update({f"optimizer.{name}.{moment}": tensor for moment, tensor in kept.items()})
    return {name: _whole(tensor).numpy().tobytes() for name, tensor in tensors.items()}


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()
    return whole.contiguous()
