"""planc's tensor-parallel styles in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from planc import vocab
from planc.graph.ops import ShardTensorParallel
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.sharded_modules import (
    ShardExperts,
    ShardOwnParameters,
    ShardPackedLinear,
    SumRotaryGradient,
)
from planc.runtime.torch.parallel.ties import tie, tied_parameters
from planc.runtime.torch.private import strided_shard
from planc.runtime.torch.session import Session
from planc.styles.style import StyleUse


def shard_tensor_parallel(session: Session, op: ShardTensorParallel, position: Position) -> None:
    """Shard the op's modules over its mesh dim. Between modules, activations are plain local tensors."""
    (mesh_dim,) = op.over
    ties = tied_parameters(session.model)
    style = torch_style(op.use, parameters=op.parameters, config=session.model.config)
    plan = dict.fromkeys(op.modules, style) if style is not None else {}
    parallelize_module(session.model, session.submesh(mesh_dim), plan)
    # parallelize_module gives each module a parameter of its own, which unties tied parameters.
    tie(session.model, ties)


def torch_style(
    use: StyleUse, *, parameters: Sequence[tuple[str, vocab.Placement]] = (), config: Any = None
) -> ParallelStyle | None:
    """PyTorch's style for a planc style; None for modules that stay as they are.

    `parameters` and the model's `config` are read for modules that compute with local tensors.
    """
    input_layout, output_layout = placement(use.input), placement(use.output)
    placements = {name: placement(of) for name, of in parameters}
    match use.style:
        case "replicate":
            return None
        case "colwise" | "colwise_gather_output" | "embedding_colwise":
            return ColwiseParallel(input_layouts=input_layout, output_layouts=output_layout)
        case "rowwise" | "rowwise_split_input" | "embedding_rowwise":
            return RowwiseParallel(input_layouts=input_layout, output_layouts=output_layout)
        case "sequence_parallel":
            return SequenceParallel(sequence_dim=use.sequence_dim, use_local_output=True)
        case "replicated_with_grad_allreduce":
            # Heads [batch, sequence, heads, head_dim] are sharded like a sequence along dimension 2: the
            # weight stays replicated, and its gradient is a partial sum.
            return SequenceParallel(sequence_dim=2, use_local_output=True)
        case "prepare_input":
            return PrepareInput(input_layout, placement(use.computes_on))
        case "prepare_input_output":
            return PrepareInputOutput(input_layout, placement(use.computes_on), output_layout)
        case "packed_colwise":
            return ShardPackedLinear(placements, input_layout)
        case "moe_tp_experts":
            return ShardExperts(placements)
        case "local_params":
            return ShardOwnParameters(placements)
        case "mla_kv_a_proj":
            return SumRotaryGradient(width=config.qk_rope_head_dim)
        case unknown:
            raise AssertionError(f"no implementation of style {unknown}")


def placement(of: vocab.Placement) -> Placement:
    """PyTorch's placement."""
    match of:
        case vocab.Shard(tensor_dim):
            return Shard(tensor_dim)
        case vocab.StridedShard(tensor_dim, split_factor):
            strided: Placement = strided_shard(tensor_dim, split_factor=split_factor)
            return strided
        case vocab.Replicate():
            return Replicate()
        case vocab.Partial():
            return Partial()
        case _:
            assert_never(of)


class PrepareInput(ParallelStyle):
    """Redistributes a module's hidden states before it runs: its first positional argument, or the
    `hidden_states` keyword. PyTorch's PrepareModuleInput must know in advance which of the two a model uses.

    The module receives a DTensor, so the gradients of all the linear layers that read it are added up while
    they are partial, and reduced once.
    """

    def __init__(self, input_layout: Any, desired_layout: Any) -> None:
        super().__init__()
        self.input_layout = input_layout
        self.desired_layout = desired_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def redistribute(tensor: Tensor) -> Tensor:
            sharded = DTensor.from_local(tensor, device_mesh, (self.input_layout,), run_check=False)
            return sharded.redistribute(placements=(self.desired_layout,))

        prepare_hidden_states(module, redistribute)
        return module


class PrepareInputOutput(ParallelStyle):
    """Redistributes a module's hidden states before it runs, and its output afterwards.

    Inside, tensors are plain. Each inner layer that shards its work sums the gradient of its own input, so
    the module's gradients are complete on every rank.
    """

    def __init__(self, input_layout: Any, desired_layout: Any, output_layout: Any) -> None:
        super().__init__()
        self.input_layout = input_layout
        self.desired_layout = desired_layout
        self.output_layout = output_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def move(tensor: Tensor, arriving: Any, leaving: Any) -> Tensor:
            sharded = DTensor.from_local(tensor, device_mesh, (arriving,), run_check=False)
            return sharded.redistribute(placements=(leaving,)).to_local()

        def leave(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            # GPT's layers return a list.
            if isinstance(output, tuple | list):
                return type(output)((move(output[0], self.desired_layout, self.output_layout), *output[1:]))
            return move(output, self.desired_layout, self.output_layout)

        prepare_hidden_states(module, lambda tensor: move(tensor, self.input_layout, self.desired_layout))
        module.register_forward_hook(leave)
        return module


def prepare_hidden_states(module: nn.Module, redistribute: Callable[[Tensor], Tensor]) -> None:
    """Make a module redistribute its hidden states before it runs."""

    def prepare(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if arguments and isinstance(arguments[0], torch.Tensor):
            return (redistribute(arguments[0]), *arguments[1:]), keywords
        if "hidden_states" not in keywords:
            raise ValueError("prepare_input finds no hidden states among this module's arguments")
        return arguments, {**keywords, "hidden_states": redistribute(keywords["hidden_states"])}

    module.register_forward_pre_hook(prepare, with_kwargs=True)
