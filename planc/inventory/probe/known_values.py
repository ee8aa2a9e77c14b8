"""Values that a forward on the meta device computes from its inputs alone. Imports torch, for the probe.

Weights have no values on meta, and neither has anything computed from them. Anything that code computes from
token ids, positions and shapes is computed a second time here, on the CPU. An op on both kinds of tensors,
such as an embedding looked up by position or a rotation of queries, is a meeting: there known values take
effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from planc.modeling.private import TorchDispatchMode, tree_leaves, tree_map_only

_FILLED_LIKE = frozenset(
    name for stem in ("zeros", "ones", "full") for name in (f"{stem}_like", f"new_{stem}")
)
"""Ops that use a tensor only as the template of a new one, whose values they set."""
_LARGEST_PATTERN = 2**20
_UNFILLED = ("empty", "new_empty")
"""Prefixes of the names of ops whose results are uninitialized."""


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """An op that took tensors with and without values; `known` are those with values."""

    op: str
    known: tuple[Tensor, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for meetings of the same op with the same known values."""
        return (self.op, *(_digest(value) for value in self.known))


class KnownValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, follows known values and collects `meetings`, in the order of the forward.

    One object serves all forwards of a model: tensors that its code keeps from one to the next stay known.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meetings: list[Meeting] = []
        # Tensors are kept alive: their identities are the keys.
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def tell(self, tensor: Tensor, *, value: Tensor) -> Tensor:
        """Assign a known value to a meta tensor, and return the tensor."""
        self._known[id(tensor)] = (tensor, value)
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_pattern = _name(func) in _FILLED_LIKE
        values = [_pattern(tensor) if is_pattern else self._value(tensor) for tensor in tensors]
        known = tuple(value for value in values if value is not None)
        if len(known) == len(values) and _has_values(func):
            return self._computed(func, args, kwargs, of=_pattern if is_pattern else self._value)
        if known:
            # A later op may write to the value itself.
            self.meetings.append(Meeting(str(func), tuple(value.clone() for value in known)))
        result = func(*args, **kwargs)
        self._forget(_written(func, args, kwargs))
        return result

    def _computed(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        of: Callable[[Tensor], Tensor | None],
    ) -> Any:
        """The op's result, with values computed from those `of` its tensors."""
        cpu_args, cpu_kwargs = tree_map_only(Tensor, of, (args, kwargs))
        if "device" in cpu_kwargs:
            cpu_kwargs["device"] = torch.device("cpu")
        try:
            value = func(*cpu_args, **cpu_kwargs)
        except (RuntimeError, IndexError):
            # The CPU lacks a kernel that meta has, such as a histogram of integers.
            return func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value  # A number, read from a tensor.
        result = func(*args, **kwargs)
        for tensor, beside in zip(tree_leaves(result), tree_leaves(value), strict=True):
            if isinstance(tensor, Tensor):
                self.tell(tensor, value=beside)
        return result

    def _value(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_meta:
            return tensor
        entry = self._known.get(id(tensor))
        return None if entry is None else entry[1]

    def _forget(self, written: Iterator[Tensor]) -> None:
        """Forget the values of written tensors, and of all views of them."""
        for value in map(self._value, written):
            if value is None:
                continue
            storage = value.untyped_storage()._cdata
            stale = [key for key, (_, one) in self._known.items() if one.untyped_storage()._cdata == storage]
            for key in stale:
                del self._known[key]


def _name(func: Any) -> str:
    found: str = func._schema.name.removeprefix("aten::")
    return found


def _pattern(tensor: Tensor) -> Tensor | None:
    """A tensor of the same shape and dtype on the CPU; None for a large one, which no position is."""
    is_small = tensor.numel() <= _LARGEST_PATTERN
    return torch.empty(tensor.shape, dtype=tensor.dtype) if is_small else None


def _has_values(func: Any) -> bool:
    return not _name(func).startswith(_UNFILLED) and torch.Tag.nondeterministic_seeded not in func.tags


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that an op writes to."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _digest(value: Tensor) -> tuple[object, ...]:
    content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(value.shape), value.dtype, hashlib.sha256(content).hexdigest()
