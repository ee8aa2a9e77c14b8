"""planc's tensor-parallel styles in PyTorch: sharded modules, moves at their edges, and shares of heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from transformers.pytorch_utils import Conv1D

from planc import vocab
from planc.graph.ops import ShardTensorParallel, ShareHeads
from planc.modeling.head_counts import Share, cut_arguments, set_at, value_at
from planc.runtime.errors import RunError
from planc.runtime.model_files import STALE
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.packing import Packing, note_packings, packing_of
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import (
    compute_locally,
    computes_locally,
    distribute_parameters,
)
from planc.runtime.torch.parallel.ties import Ties, tie, tied_parameters
from planc.runtime.torch.parallel.transfers import crossing, ranks_of
from planc.runtime.torch.run import Run
from planc.styles import BY_NAME
from planc.styles.edges import FEATURES, At, Edge
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
    _move_at_edges(module, op.edges, mesh, rotary_width=rotary_width)


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


def _move_at_edges(
    module: nn.Module, at_edges: tuple[Edge, ...], mesh: DeviceMesh, *, rotary_width: int
) -> None:
    """Move what enters and leaves a module. Hooks: recomputing the module's forward does not repeat them."""
    ranks = ranks_of(mesh.get_group())
    for edge in at_edges:
        match edge.at:
            case At.INPUT:
                _prepare_hidden_states(module, crossing(edge, ranks))
            case At.ROUTING_WEIGHTS:
                _prepare_routing(module, crossing(edge, ranks))
            case At.OUTPUT:
                length = _num_features(module) if edge.arriving.value == FEATURES else None
                _move_output(module, crossing(edge, ranks, length=length))
            case At.ROTARY_OUTPUT:
                _move_output(module, _of_last_features(crossing(edge, ranks), rotary_width))
            case unknown:
                assert_never(unknown)


def _of_last_features(move: Callable[[Tensor], Tensor], width: int) -> Callable[[Tensor], Tensor]:
    """Moves the last `width` features of a value, and leaves the others."""

    def moved(value: Tensor) -> Tensor:
        return torch.cat((value[..., :-width], move(value[..., -width:])), dim=-1)

    return moved


def _num_features(module: nn.Module) -> int | None:
    """The features of a linear layer's or an embedding's whole output."""
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 2:
        return None
    return weight.shape[1 if isinstance(module, nn.Embedding | Conv1D) else 0]


def _prepare_hidden_states(module: nn.Module, move: Callable[[Tensor], Tensor]) -> None:
    """Move a module's hidden states before it runs: its first positional argument, or the `hidden_states`
    keyword, and every other argument that is the same tensor."""

    def prepare(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        states = arguments[0] if arguments else keywords.get("hidden_states", keywords.get("input"))
        if not isinstance(states, Tensor):
            raise ValueError("a module finds no hidden states among its arguments to move")
        moved = move(states)
        # CTRL passes them as queries, keys and values.
        return tuple(moved if argument is states else argument for argument in arguments), {
            name: moved if one is states else one for name, one in keywords.items()
        }

    module.register_forward_pre_hook(prepare, with_kwargs=True)


def _move_output(module: nn.Module, move: Callable[[Tensor], Tensor]) -> None:
    def leave(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        # GPT's layers return a list.
        if isinstance(output, tuple | list):
            return type(output)((move(output[0]), *output[1:]))
        return move(output)

    module.register_forward_hook(leave)


def _prepare_routing(module: nn.Module, move: Callable[[Tensor], Tensor]) -> None:
    """Move the floating-point arguments of experts behind their tokens."""

    def moved(value: Any) -> Any:
        return move(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    def enter(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        first, *rest = arguments
        entered = (first, *map(moved, rest))
        return entered, {
            name: value if name == "hidden_states" else moved(value) for name, value in keywords.items()
        }

    module.register_forward_pre_hook(enter, with_kwargs=True)


def share_heads(run: Run, op: ShareHeads, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None) -> None:
    """Divide the attributes by which the code of attentions counts its heads, and cut arguments by head."""
    (mesh_dim,) = op.over
    ranks = mesh.submesh(mesh_dim)
    for fqn in held(pipeline, op.modules):
        attention = model.get_submodule(fqn)
        for paths, number in _divisors(op, num_ranks=ranks.size()):
            for path in paths:
                value = value_at(attention, path)
                if value is None or value % number:
                    message = f"`{fqn}.{path}` is {value!r}, which {number} ranks can't share"
                    raise RunError(message, help=STALE)
                set_at(attention, path, value // number)
        for argument in op.arguments:
            share = Share(ranks.get_local_rank(), ranks.size(), argument.num_heads)
            cut_arguments(
                attention, ((argument.argument, argument.tensor_dim, argument.is_per_sample),), share
            )


def _divisors(op: ShareHeads, *, num_ranks: int) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Attributes, and what they are divided by."""
    return (op.counts, num_ranks), (op.group_counts, op.copies), (op.kv_counts, num_ranks // op.copies)
