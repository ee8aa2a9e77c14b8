"""Uses of a module's output that would fail on a shard of it. Imports torch.

Some write into the tensor itself; some compute a statistic over all its features, outside of any module, so
neither names nor shapes show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_STATISTICS = frozenset(
    (
        *(
            "amax",
            "amin",
            "argmax",
            "argmin",
            "argsort",
            "cumsum",
            "kthvalue",
            "log_softmax",
            "logsumexp",
            "max",
        ),
        *("mean", "median", "min", "norm", "quantile", "softmax", "sort", "std", "std_mean", "sum", "topk"),
        *("var", "var_mean", "vector_norm"),
    )
)
"""Functions that reduce a dimension."""


class OutputUses(TorchFunctionMode):
    """Watches a forward: `written` and `reduced` are the modules whose outputs are used in these ways.

    `sources` gives the modules that reached a tensor. Uses inside a norm do not count.
    """

    def __init__(self, sources: Callable[[Any], frozenset[str]], *, widths: dict[str, int]) -> None:
        super().__init__()
        self.written: set[str] = set()
        self.reduced: set[str] = set()
        self._sources = sources
        self._widths = widths
        """The widths of the linear layers' outputs."""
        self._outputs: dict[int, tuple[Tensor, str]] = {}
        self._num_norms = 0
        """The number of norms that are running."""

    def watch_norm(self, module: nn.Module) -> None:
        """Ignore uses while the module runs."""

        def enter(*_: object) -> None:
            self._num_norms += 1

        def leave(*_: object) -> None:
            self._num_norms -= 1

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    def hand_out(self, fqn: str, output: object) -> None:
        """Record a module's output; tensors are kept alive, because their identities are the keys."""
        if isinstance(output, Tensor):
            base = output if output._base is None else output._base
            self._outputs[id(base)] = base, fqn

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is None or name == "__get__":
            return func(*args, **kwargs)
        version, base = _version_and_base(first)
        result = func(*args, **kwargs)
        if id(base) in self._outputs and _version_and_base(first)[0] != version:
            self.written.add(self._outputs[id(base)][1])
        if name in _STATISTICS and not self._num_norms:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            self._reduce(first, dim)
        return result

    def _reduce(self, tensor: Tensor, dim: object) -> None:
        sources = self._sources(tensor)
        dims = dim if isinstance(dim, list | tuple) else (dim,)
        is_last = any(isinstance(one, int) and one in (-1, tensor.dim() - 1) for one in dims)
        self.reduced |= {fqn for fqn in sources if is_last and self._widths.get(fqn) == tensor.shape[-1]}


def _version_and_base(tensor: Tensor) -> tuple[int, Tensor]:
    # Other modes would follow these reads as the model's own, at the price of a function each.
    with torch._C.DisableTorchFunction():
        return tensor._version, tensor if tensor._base is None else tensor._base
