"""Modules whose dropouts draw masks by global position. Names of modules do not change.

A module gets a subclass of its own class. All layers share it, so torch.compile takes one graph for them. A
dropout's number in its module counts from 0 wherever the code that runs it begins, also in a recomputation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from planc.runtime.errors import RunError
from planc.runtime.model_files import STALE
from planc.runtime.torch.dropout.masking import AttachedDraw

_OWN, _REPEATED = "_planc_own_draws", "_planc_repeated_draws"


class Calls:
    """The draws of one module in order, and how many have been made."""

    def __init__(self, fqn: str, draws: tuple[AttachedDraw, ...]) -> None:
        self._fqn, self._draws = fqn, draws
        self._number = 0

    def begin(self) -> None:
        self._number = 0

    def drop(self, value: Tensor, probability: float) -> Tensor:
        """The next draw; RunError if the plan has another."""
        number = self._number
        if number >= len(self._draws) or self._draws[number].draw.probability != probability:
            known = ", ".join(str(draw.draw.probability) for draw in self._draws)
            raise RunError(
                f"dropout {number} of `{self._fqn}` has probability {probability}; the plan has {known}",
                help=STALE,
            )
        self._number = number + 1 if len(self._draws) > 1 else 0
        return self._draws[number](value)


def mask_calls(module: nn.Module, calls: Calls) -> None:
    """Let the module's own calls of `functional.dropout` be these."""
    _replace_class(module)
    vars(module)[_OWN] = calls


def mask_dropout(module: nn.Module, calls: Calls, *, caller: nn.Module | None) -> None:
    """Let a module of torch's be these; `caller` is the one that runs it, if it does so several times."""
    module.__class__ = _masked_dropout()
    vars(module)[_OWN] = calls
    if caller is not None:
        _replace_class(caller)
        vars(caller)[_REPEATED] = (*getattr(caller, _REPEATED), calls)


def _replace_class(module: nn.Module) -> None:
    of_class: Any = type(module)
    if not hasattr(of_class, _REPEATED):
        module.__class__ = _with_masks(of_class)


@functools.cache
def _masked_dropout() -> type[nn.Module]:
    def forward(self: Any, input: Tensor) -> Tensor:
        dropped: Tensor = getattr(self, _OWN).drop(input, self.p) if self.training else input
        return dropped

    return _subclass(nn.Dropout, forward)


@functools.cache
def _with_masks(of_class: Any) -> type[nn.Module]:
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        for calls in getattr(self, _REPEATED):
            calls.begin()
        own = getattr(self, _OWN)
        if own is None or not self.training:
            return of_class.forward(self, *arguments, **keywords)
        own.begin()
        with _MaskedCalls(own):
            return of_class.forward(self, *arguments, **keywords)

    return _subclass(of_class, functools.wraps(of_class.forward)(forward))


def _subclass(of_class: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    names = {"__module__": of_class.__module__, "__qualname__": of_class.__qualname__}
    own = {"forward": forward, _OWN: None, _REPEATED: ()}
    made: type[nn.Module] = type(of_class.__name__, (of_class,), names | own)
    return made


class _MaskedCalls(TorchFunctionMode):
    """Makes draws of calls of `functional.dropout` that drop anything.

    A module inside that has draws of its own enters another mode, which is asked first.
    """

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        value, probability, is_training = _arguments_of(*args, **(kwargs or {}))
        return self._calls.drop(value, probability) if is_training and probability > 0 else value


def _arguments_of(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[Tensor, float, bool]:
    """The arguments of `functional.dropout`, by its own names."""
    return input, p, training
