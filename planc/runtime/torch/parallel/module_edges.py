"""Hooks that move what enters and leaves a module over tp, as the graph's edges state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.pytorch_utils import Conv1D

from planc.runtime.torch.parallel.transfers import crossing, ranks_of
from planc.styles.edges import FEATURES, At, Edge


def move_at_edges(
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
