"""Record every collective that a rank calls, below DTensor and FSDP."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.runtime.torch.private import OpOverload, TorchDispatchMode, resolve_process_group

Call = tuple[str, tuple[int, ...], int]
"""(kind, ranks of the group, bytes of this rank's input)."""

KINDS: Mapping[str, str] = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "send": "send",
}
"""Ops of `_NAMESPACES`, by what they do. Inductor's kernels call those that reuse a buffer, such as
`all_reduce_`."""

_NAMESPACES = ("_c10d_functional", "c10d", "_c10d_functional_autograd", "_dtensor")
_OUTPUT_FIRST = ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "allgather_", "gather_")
# A message is counted where it is sent.
_FREE = (
    "mesh_get_process_group",
    "wait_tensor",
    "_wrap_tensor_autograd",
    "monitored_barrier_",
    "barrier",
    "recv_",
)


class CollectiveRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every collective, also of compiled modules. KeyError on an unknown one, so none goes uncounted.

    With `names_unknown` the kind of an unknown one is its name, and its bytes are 0.
    """

    supports_higher_order_operators = True
    """They pass: the tracing of compiled modules calls some."""

    def __init__(self, *, names_unknown: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[Call] = Counter()
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._names_unknown = names_unknown

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Modules compile as without the recorder, which then sees what their compiled code calls."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A DTensor's op comes back here as what it does on this rank.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = _collective(func)
        if name is not None:
            self._note(name, (*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if name in ("allgather_", "gather_"):
            tensors = [arguments[0], *arguments[1]]
        elif not isinstance(arguments[0], Tensor):
            tensors = arguments[0]  # c10d takes a list
        group = next(filter(None, map(_group, arguments)))
        if self._names_unknown and name not in KINDS:
            self.calls[name, self._ranks_of(group), 0] += 1
            return
        sent = tensors[1 if name in _OUTPUT_FIRST else 0]
        self.calls[KINDS[name], self._ranks_of(group), sent.numel() * sent.element_size()] += 1

    def _ranks_of(self, group: dist.ProcessGroup) -> tuple[int, ...]:
        name = group.group_name
        if name not in self._ranks:
            self._ranks[name] = tuple(dist.get_process_group_ranks(group))
        return self._ranks[name]


class CollectiveError(RuntimeError):
    """A collective that must not be called here."""


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """CollectiveError for every collective, barriers included, before it waits for other ranks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, OpOverload) and func._schema.name.partition("::")[0] in _NAMESPACES:
            raise CollectiveError(f"a collective, {func._schema.name}")
        return func(*args, **(kwargs or {}))


@functools.cache
def _collective(func: Any) -> str | None:
    """The name of a collective; None for other ops. Cached, because every op of a step comes here."""
    # Higher-order operators have no schema.
    if not isinstance(func, OpOverload):
        return None
    namespace, _, name = func._schema.name.partition("::")
    return name if namespace in _NAMESPACES and name not in _FREE else None


def _group(argument: object) -> dist.ProcessGroup | None:
    if isinstance(argument, str):
        try:
            group: dist.ProcessGroup = resolve_process_group(argument)
        except (RuntimeError, ValueError):
            return None  # the reduce op, `sum`
        return group
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return dist.ProcessGroup.unbox(argument)
    return None
