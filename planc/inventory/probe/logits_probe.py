"""Functions that a model applies to its head's output to get its logits. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from planc.inventory.probe.forwards import run_again
from planc.vocab import LogitsFunction, LogitsStep

_FUNCTIONS: Mapping[str, LogitsFunction] = {
    "mul": LogitsFunction.MULTIPLY,
    "div": LogitsFunction.DIVIDE,
    "truediv": LogitsFunction.DIVIDE,
    "tanh": LogitsFunction.TANH,
    "float": LogitsFunction.FLOAT32,
}
_SCALING = (LogitsFunction.MULTIPLY, LogitsFunction.DIVIDE)


def logits_steps(model: PreTrainedModel) -> tuple[LogitsStep, ...] | None:
    """The functions between the head's output and the logits; None if planc does not know one of them."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return None
    logits: list[Tensor] = []
    steps = _Steps()
    with contextlib.ExitStack() as stack:
        stack.callback(head.register_forward_hook(lambda _, args, output: steps.begin(output)).remove)
        stack.callback(
            model.register_forward_hook(lambda _, args, output: logits.append(output.logits)).remove
        )
        with steps:
            run_again(model)
    return steps.until(logits[-1])


class _Steps(TorchFunctionMode):
    """Follows the head's output from function to function."""

    def __init__(self) -> None:
        super().__init__()
        self._value: Tensor | None = None
        self._steps: list[LogitsStep | None] = []
        self._num_heads = 0

    def begin(self, output: Any) -> None:
        self._value = output if isinstance(output, Tensor) else None
        self._num_heads += 1

    def until(self, logits: Tensor) -> tuple[LogitsStep, ...] | None:
        steps = [one for one in self._steps if one is not None]
        is_known = self._num_heads == 1 and self._value is logits and len(steps) == len(self._steps)
        return tuple(steps) if is_known else None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_next = self._value is not None and any(one is self._value for one in args)
        if is_next and isinstance(result, Tensor):
            # OPT's, which changes no value.
            if getattr(func, "__name__", "") != "contiguous":
                self._steps.append(_step(func, args, kwargs or {}))
            self._value = result
        return result


def _step(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LogitsStep | None:
    name = getattr(func, "__name__", "").strip("_").removeprefix("r").removeprefix("i")
    function = _FUNCTIONS.get(name)
    numbers = [one for one in args[1:] if isinstance(one, int | float)]
    if name == "to" and torch.float32 in args and not kwargs:
        return LogitsStep(LogitsFunction.FLOAT32)
    if function in _SCALING and len(args) == 2 and len(numbers) == 1 and not kwargs:
        return LogitsStep(function, float(numbers[0]))
    if function is not None and function not in _SCALING and len(args) == 1 and not kwargs:
        return LogitsStep(function)
    return None
