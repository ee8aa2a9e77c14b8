"""A device in name only: what a step would wait for, had its tensors lain on a CUDA device.

Everything is computed in the host's memory. A tensor counts as the device's if it was made with
`device=DEVICE`, which computes as the host does but is not equal to it, or from such a tensor. Two modes look
at every call: one at PyTorch's ops, below autograd, DTensor and FSDP; one at the methods of tensors that call
no op on the host, such as `tolist`.

What it can't see: PyTorch's own branches for CUDA (of FSDP's streams, for example), waits inside compiled
code, kernels whose host part waits for a reason of its own (some of `torch.linalg`), and the memory
allocator.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cpu", 0)
"""The fake device: tensors on it report plain `cpu`, which never equals it."""
_ROOT = Path(__file__).parents[2]
_TORCH = Path(torch.__file__).parent
_OWN = ("fake_device.py", "syncs.py")
_NUMBERS = ("_local_scalar_dense", "equal", "is_nonzero", "item")
"""Ops that return a number to the host."""
_SIZES = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount")
"""Ops whose result's size is the device's to tell."""
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_GET_DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]
_COPIES = ("_to_copy", "copy_")
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of the host for the device: what waited, and the line that made it."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what:<42} {self.where}"


class FakeDevice:
    """Knows which tensors are on the device, and lists waits while `is_listing`."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.is_listing = False
        self.num_waits = 0
        """Listed or not."""
        self._here: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device. A DTensor is where its local part is."""
        return _is_in(self._here, tensor)

    def wait(self, what: str) -> None:
        self.num_waits += 1
        if self.is_listing:
            self.waits.append(Wait(what, _line()))

    def put(self, results: Any) -> None:
        """Tensors among the results are on the device from now on."""
        for one in _tensors(results):
            self._here[_key(one)] = StorageWeakRef(one.untyped_storage())

    def forget(self, results: Any) -> None:
        for one in _tensors(results):
            self._here.pop(_key(one), None)

    def pin(self, tensor: Tensor) -> Tensor:
        self._pinned[_key(tensor)] = StorageWeakRef(tensor.untyped_storage())
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return _is_in(self._pinned, tensor)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, all that PyTorch is called for is looked at."""
        device = self

        class Event:
            """Of a queue that does nothing until the host waits for it."""

            def __init__(self, **_: Any) -> None:
                self.seconds, self.recorded = 0.0, 0

            def record(self) -> None:
                self.seconds, self.recorded = time.perf_counter(), device.num_waits

            def query(self) -> bool:
                return device.num_waits > self.recorded

            def elapsed_time(self, later: Event) -> float:
                if not later.query():
                    raise RuntimeError("the device has not passed this event")
                return (later.seconds - self.seconds) * 1e3

            def synchronize(self) -> None:
                device.wait("Event.synchronize")

        wait = dist.Work.wait

        def unseen(*arguments: Any) -> Any:
            """gloo copies in the host's memory while it is waited for, where NCCL's wait is the queue's."""
            was, self.is_listing = self.is_listing, False
            try:
                return wait(*arguments)
            finally:
                self.is_listing = was

        with (
            patch.object(dist.Work, "wait", unseen),
            patch.object(torch.cuda, "Event", Event),
            patch.object(torch.cuda, "synchronize", lambda *_: device.wait("torch.cuda.synchronize")),
            _Methods(self),
            _Ops(self),
        ):
            yield


class _Ops(TorchDispatchMode):
    """Every op: where its results lie, and whether the host waits for it."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A DTensor's op comes back here as what it does on this rank.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = dict(kwargs or {})
        namespace, _, name = func._schema.name.partition("::")
        given = [*_tensors((args, kwargs))]
        from_device = [one for one in given if self.device.has(one)]
        if what := self._waits(name, args, kwargs, given, from_device):
            self.device.wait(what)
        is_pinned = kwargs.pop("pin_memory", False) if "pin_memory" in kwargs else False
        results = func(*args, **kwargs)
        if is_pinned:
            self.device.pin(results)
        self._place(func, namespace, args, kwargs, given, from_device, results)
        return results

    def _waits(self, name: str, args: Any, kwargs: Any, given: list[Tensor], here: list[Tensor]) -> str:
        """What waits, in words; empty if nothing does."""
        if name == "barrier":
            return "a barrier"
        if name in _COPIES:
            return self._copies(name, args, kwargs)
        if not here:
            return ""
        if name in _NUMBERS:
            return f"a number is read ({name})"
        if name in _SIZES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            return f"the size of a result is read ({name})"
        if name in _INDEXING:
            indices = [one for one in _tensors(args[1]) if one.dtype in (torch.bool, torch.uint8)]
            fills = name != "index" and args[2].numel() == 1 and not self.device.has(args[2])
            if indices and not fills:
                return f"the size of a mask is read ({name})"
        return ""

    def _copies(self, name: str, args: Any, kwargs: Any) -> str:
        target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
        is_free = args[2] if name == "copy_" and len(args) > 2 else kwargs.get("non_blocking", False)
        is_from = self.device.has(source)
        device = kwargs.get("device")
        is_to = self.device.has(target) if target is not None else device == DEVICE
        if target is None and device is None:
            is_to = is_from
        if is_to and not is_from and not (is_free and self.device.is_pinned(source)):
            return "a copy to the device from pageable memory" if is_free else "a blocking copy to the device"
        # Into memory of its own, a copy that does not block is pinned.
        is_free = is_free and (target is None or self.device.is_pinned(target))
        return "a blocking copy to the host" if is_from and not is_to and not is_free else ""

    def _place(
        self, func: Any, namespace: str, args: Any, kwargs: Any, given: list[Tensor], here: Any, results: Any
    ) -> None:
        device, name = kwargs.get("device"), func._schema.name.partition("::")[2]
        if namespace in _COLLECTIVES and here:
            self.device.put((given, results))
        elif name == "copy_":
            return
        elif device is not None:
            if device == DEVICE:
                self.device.put(results)
            elif not here or name == "_to_copy":
                self.device.forget(results)
        elif here and name not in _NUMBERS:
            self.device.put(results)
            self.device.put(_written(func, args, kwargs))
        elif not _aliases(results, given):
            self.device.forget(results)


class _Methods(TorchFunctionMode):
    """The functions that call no op in the host's memory, where its tensors are in truth."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.pin_memory:
            return self.device.pin(args[0].clone())
        if func == _GET_DEVICE and self.device.has(args[0]):
            return DEVICE
        if func is torch.empty and kwargs.pop("pin_memory", False):
            return self.device.pin(func(*args, **kwargs))
        is_here = bool(args) and isinstance(args[0], Tensor) and self.device.has(args[0])
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu) and is_here:
            self.device.wait(f"a copy to the host ({func.__name__})")
        # The fused optimizers ask for a tensor where it is, without blocking.
        if func is Tensor.to and is_here and _host(args, kwargs) and not kwargs.get("non_blocking"):
            self.device.wait("a copy to the host (to)")
        results = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            self.device.wait(f"a blocking copy to the device ({func.__name__})")
            self.device.put(results)
        return results


def _host(args: Any, kwargs: Any) -> bool:
    """Whether the arguments of `to` name the host."""
    named = [one for one in (*args[1:], *kwargs.values()) if isinstance(one, str | torch.device)]
    return any(torch.device(one) == torch.device("cpu") for one in named)


def _tensors(values: Any) -> Iterator[Tensor]:
    """The plain tensors in a nest of arguments."""
    for one in tree_leaves(values):
        if isinstance(one, Tensor):
            yield one.to_local() if isinstance(one, DTensor) else one


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an op writes into."""
    arguments = func._schema.arguments
    named = {**{one.name: value for one, value in zip(arguments, args, strict=False)}, **kwargs}
    writes = {one.name for one in arguments if one.alias_info and one.alias_info.is_write}
    return [value for name, value in named.items() if name in writes]


def _aliases(results: Any, given: list[Tensor]) -> bool:
    keys = {_key(one) for one in given}
    return any(_key(one) in keys for one in _tensors(results))


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_in(known: dict[int, StorageWeakRef], tensor: Tensor) -> bool:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    found = known.get(_key(local))
    # A reference keeps the address from being given to another storage, until it is found dead.
    return found is not None and not found.expired()


def _line() -> str:
    """The innermost line that is not PyTorch's: planc's own, or one of the model's code."""
    frames = (one for one in reversed(traceback.extract_stack()) if not _is_passed_over(Path(one.filename)))
    frame = next(frames)
    path = Path(frame.filename)
    name = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else Path(*path.parts[-3:])
    return f"{name}:{frame.lineno} {frame.line}"


def _is_passed_over(path: Path) -> bool:
    return path.name in _OWN or path.is_relative_to(_TORCH) or path.name == "contextlib.py"
