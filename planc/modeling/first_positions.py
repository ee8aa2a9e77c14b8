"""Positions of true elements in tensors without values: as if the first ones were true. Imports torch.

Code of experts queries which of them have tokens, and which tokens each has. Here the first expert has all of
them, so code that treats all experts equally runs once, on as many rows as all experts share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FirstPositions(TorchFunctionMode):
    """Answers `nonzero` and `where(condition)` of tensors without values, and tells of each.

    `nonzero` gives one position, in CPU memory, where it can be read. `where` gives as many as the condition
    has elements: for a mask of experts chosen per token, [choices, tokens], all that are routed.
    """

    def __init__(
        self, lacks_values: Callable[[Tensor], bool], on_answer: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._lacks_values = lacks_values
        self._on_answer = on_answer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        match getattr(func, "__name__", ""), args:
            case "nonzero", (Tensor() as condition,) if not kwargs.get("as_tuple"):
                if self._lacks_values(condition):
                    self._on_answer()
                    return torch.tensor([[0] * condition.ndim], device="cpu")
            case "where", (Tensor() as condition,) if not kwargs:
                if self._lacks_values(condition):
                    self._on_answer()
                    positions = torch.empty(condition.numel(), dtype=torch.long, device=condition.device)
                    return (positions,) * condition.ndim
        return func(*args, **kwargs)
