"""The styles as PyTorch realises them."""

from __future__ import annotations

from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from planc import vocab
from planc.graph.ops import ShardTensorParallel
from planc.runtime.backends.torch.session import Session
from planc.runtime.backends.torch.ties import tie, tied_parameters
from planc.runtime.interpreter import Position
from planc.styles.model import StyleUse


def shard_tensor_parallel(session: Session, op: ShardTensorParallel, position: Position) -> None:
    """Divides the op's modules over its mesh dim. Between modules, activations are plain local tensors."""
    (mesh_dim,) = op.over
    ties = tied_parameters(session.model)
    plan = {fqn: realise(op.use) for fqn in op.modules if op.use.style != "replicate"}
    parallelize_module(session.model, session.submesh(mesh_dim), plan)
    # parallelize_module gives each module a parameter of its own, which unties what was tied.
    tie(session.model, ties)


def realise(use: StyleUse) -> ParallelStyle:
    """PyTorch's style for a planc style."""
    input_layout, output_layout = placement(use.input), placement(use.output)
    match use.style:
        case "colwise" | "colwise_gather_output" | "embedding_colwise":
            return ColwiseParallel(input_layouts=input_layout, output_layouts=output_layout)
        case "rowwise" | "rowwise_split_input" | "embedding_rowwise":
            return RowwiseParallel(input_layouts=input_layout, output_layouts=output_layout)
        case "sequence_parallel":
            return SequenceParallel(sequence_dim=use.sequence_dim, use_local_output=True)
        case "replicated_with_grad_allreduce":
            # Heads [batch, sequence, heads, head_dim] are divided like a sequence along dimension 2: the
            # weight stays whole, and its gradient is a partial sum.
            return SequenceParallel(sequence_dim=2, use_local_output=True)
        case "prepare_input":
            return PrepareInput(input_layout, placement(use.computes_on))
        case unknown:
            raise AssertionError(f"no realisation of style {unknown}")


def placement(of: vocab.Placement) -> Shard | Replicate | Partial:
    """PyTorch's placement."""
    match of:
        case vocab.Shard(tensor_dim):
            return Shard(tensor_dim)
        case vocab.Replicate():
            return Replicate()
        case vocab.Partial():
            return Partial()
        case _:
            assert_never(of)


class PrepareInput(ParallelStyle):
    """Redistributes a module's hidden states before it runs: its first positional argument, or the
    `hidden_states` keyword. PyTorch's PrepareModuleInput wants to be told which of the two a model uses.

    The module receives a DTensor, so that the gradients of all the linear layers that read it are added up
    while they are partial, and reduced once.
    """

    def __init__(self, input_layout: Any, desired_layout: Any) -> None:
        super().__init__()
        self.input_layout = input_layout
        self.desired_layout = desired_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def redistribute(tensor: Tensor) -> Tensor:
            sharded = DTensor.from_local(tensor, device_mesh, (self.input_layout,), run_check=False)
            return sharded.redistribute(placements=(self.desired_layout,))

        def prepare(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if arguments and isinstance(arguments[0], torch.Tensor):
                return (redistribute(arguments[0]), *arguments[1:]), keywords
            if "hidden_states" not in keywords:
                raise ValueError("prepare_input finds no hidden states among this module's arguments")
            return arguments, {**keywords, "hidden_states": redistribute(keywords["hidden_states"])}

        module.register_forward_pre_hook(prepare, with_kwargs=True)
        return module
