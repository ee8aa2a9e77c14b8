"""planc's tensor-parallel styles in PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import assert_never

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from planc import vocab
from planc.graph.ops import ShardTensorParallel
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.module_edges import move_at_edges
from planc.runtime.torch.parallel.packing import Packing, note_packings, packing_of
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import (
    compute_locally,
    computes_locally,
    distribute_parameters,
)
from planc.runtime.torch.parallel.ties import Ties, tie, tied_parameters
from planc.runtime.torch.run import Run
from planc.styles import BY_NAME
from planc.vocab import parent_of


def shard_tensor_parallel(
    run: Run, op: ShardTensorParallel, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Shard the op's modules over its mesh dim. Between modules, activations are plain local tensors."""
    (mesh_dim,) = op.over
    ties = tied_parameters(model)
    ranks = mesh.submesh(mesh_dim)
    for fqn in held(pipeline, op.modules):
        shard_module(model.get_submodule(fqn), op, ranks, rotary_width=_rotary_width(model))
    # Each module gets parameters of its own, which unties tied ones.
    tie(model, ties)
    sharded = {fqn for one in _ops(run) if _distributes(one) for fqn in one.modules}
    for module in _reading_distributed(model, ties, apart_from=sharded):
        compute_locally(module, ranks, sums_whole=False)


def _ops(run: Run) -> Iterator[ShardTensorParallel]:
    return (op for op in run.graph.setup if isinstance(op, ShardTensorParallel))


def _distributes(op: ShardTensorParallel) -> bool:
    """Whether an op's modules get distributed parameters."""
    is_sharded = any(vocab.is_sharded(placement) for _, placement in op.parameters)
    return is_sharded or BY_NAME[op.use.style].reduces_parameter_gradients


def _reading_distributed(model: nn.Module, ties: Ties, *, apart_from: Collection[str]) -> list[nn.Module]:
    """The modules whose parameter is distributed because a module that shares it is sharded."""
    fqns = {
        parent_of(name): None
        for names in ties
        for name in names
        if isinstance(model.get_parameter(name), DTensor)
    }
    modules = (model.get_submodule(fqn) for fqn in fqns if fqn not in apart_from)
    return [module for module in modules if not computes_locally(module)]


def shard_module(module: nn.Module, op: ShardTensorParallel, mesh: DeviceMesh, *, rotary_width: int) -> None:
    """Shard one module as the op's style says."""
    if _distributes(op):
        sums_whole = BY_NAME[op.use.style].reduces_parameter_gradients
        note_packings(module, _packings(module, op, mesh))
        distribute_parameters(module, {name: placement(of) for name, of in op.parameters}, mesh)
        parts = op.rows.parts if op.rows else None
        compute_locally(module, mesh, sums_whole=sums_whole, parts=parts)
    move_at_edges(module, op.edges, mesh, rotary_width=rotary_width)


def _packings(module: nn.Module, op: ShardTensorParallel, mesh: DeviceMesh) -> dict[str, Packing]:
    """The packings of a module's parameters, by local name."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters(recurse=False)}
    found = ((name, packing_of(of, shapes[name], num_ranks=mesh.size())) for name, of in op.parameters)
    return {name: packing for name, packing in found if packing is not None}


def _rotary_width(model: nn.Module) -> int:
    """The features of a latent projection's output that are keys' rotary part."""
    return getattr(model.config, "qk_rope_head_dim", 0)


def placement(of: vocab.Placement) -> Placement:
    """PyTorch's placement; of what packs several tensors, in the ranks' order."""
    match of:
        case vocab.Shard(tensor_dim) | vocab.StridedShard(tensor_dim) | vocab.PackedShard(tensor_dim):
            return Shard(tensor_dim)
        case vocab.Replicate():
            return Replicate()
        case vocab.Partial():
            return Partial()
        case _:
            assert_never(of)
