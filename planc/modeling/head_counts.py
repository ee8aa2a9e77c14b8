"""A rank's share of an attention: the integers by which its code counts heads, and its arguments by head.

The integers are attributes of the attention, of modules in it, or of its config. The probe tries with these
functions what a run then does. Imports torch.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

CONFIG = "config"
IN_CONFIG = ("num_attention_heads", "num_key_value_heads")
"""The fields of a config that count heads."""


Heads = tuple[int, int]
"""Query heads, key/value heads."""


def widths_by_heads(features: int, heads: Heads) -> tuple[int, int, int] | None:
    """The widths of queries, keys and values in a projection to so many features; None for other numbers."""
    num_heads, num_kv_heads = heads
    head_dim, rest = divmod(features, num_heads + 2 * num_kv_heads)
    return None if rest else (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)


Parts = Sequence[tuple[int, int]]
"""The parts of a layer's output features: the width of each, and how many neighboring ranks compute the same
shard of it."""


def own_rows(parts: Parts, *, rank: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """The first feature of a rank's shard of each part, and their number."""
    found, start = [], 0
    for width, copies in parts:
        share = width * copies // num_ranks
        found.append((start + rank // copies * share, share))
        start += width
    return tuple(found)


def with_rows(tensor: Tensor, rows: Sequence[tuple[int, int]], *, dim: int) -> Tensor:
    """Some rows of a tensor: a view of it if they are consecutive."""
    taken = [tensor.narrow(dim, first, length) for first, length in rows]
    return taken[0] if len(taken) == 1 else torch.cat(taken, dim)


def value_at(attention: nn.Module, path: str) -> int | None:
    """The integer at a path from an attention; None if there is none."""
    owner, name = _owner(attention, path)
    value = getattr(owner, name, None)
    return value if type(value) is int else None


def set_at(attention: nn.Module, path: str, value: int) -> None:
    """Set the integer at a path. The rest of the model keeps its config; the attention gets its own."""
    if path.startswith(f"{CONFIG}."):
        attention.config = copy.copy(attention.config)
    owner, name = _owner(attention, path)
    setattr(owner, name, value)


def _owner(attention: nn.Module, path: str) -> tuple[Any, str]:
    owner, _, name = path.rpartition(".")
    return (attention.config if owner == CONFIG else attention.get_submodule(owner)), name


Cut = tuple[str, int, bool]
"""An argument's name, its dimension of heads, and whether that has the heads of one sample after another."""


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of an attention's heads."""

    rank: int
    num_ranks: int
    num_heads: int

    def of(self, tensor: Tensor, tensor_dim: int, is_per_sample: bool) -> Tensor:
        """This rank's heads along a dimension of a tensor. ValueError if it lacks values of some heads."""
        size = tensor.shape[tensor_dim]
        if size % self.num_heads or not (is_per_sample or size == self.num_heads):
            raise ValueError(f"an argument of the shape {list(tensor.shape)} has not {self.num_heads} heads")
        if not is_per_sample:
            return tensor.chunk(self.num_ranks, tensor_dim)[self.rank]
        shape = tensor.shape
        by_sample = tensor.reshape(*shape[:tensor_dim], -1, self.num_heads, *shape[tensor_dim + 1 :])
        own = by_sample.chunk(self.num_ranks, tensor_dim + 1)[self.rank]
        return own.flatten(tensor_dim, tensor_dim + 1)


def cut_arguments(attention: nn.Module, cuts: Sequence[Cut], share: Share) -> RemovableHandle:
    """Pass an attention a rank's heads of some arguments; a hook, which is returned."""
    names = tuple(inspect.signature(attention.forward).parameters)
    dims = {name: (tensor_dim, is_per_sample) for name, tensor_dim, is_per_sample in cuts}

    def own(name: str, value: Any) -> Any:
        return share.of(value, *dims[name]) if name in dims and isinstance(value, Tensor) else value

    def cut(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        positional = itertools.starmap(own, zip(names, arguments, strict=False))
        named = {name: own(name, value) for name, value in keywords.items()}
        return (*positional, *arguments[len(names) :]), named

    return attention.register_forward_pre_hook(cut, with_kwargs=True)
