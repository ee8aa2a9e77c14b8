"""Calls of code that reads a run: RunError for what it raises, writes to, or returns wrongly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

from torch import Tensor

from planc.runtime.callbacks import Callback, Metric, StepView, Stop
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.failures import exit_code
from planc.runtime.torch.parallel.collectives import CollectiveError
from planc.runtime.torch.reporting.given_tensors import GivenTensors

_ON_ALL_RANKS = 'tensors are gathered over all ranks: set `ranks = "all"` in the callback'
_READ_ONLY = "a callback reads: work on a copy, `tensor.clone()`"
_NO_COLLECTIVE = "ask the step for whole tensors; a metric's number is reduced over all ranks"


def call_callback(
    callback: Callback,
    point: str,
    value: object,
    *,
    tensors: GivenTensors | None,
    world_size: int,
    where: str,
) -> Stop | None:
    """Call a callback at a point. `where` names the step, for errors."""
    name, method = f"callback {type(callback).__name__}", getattr(callback, point)
    if tensors is not None:
        tensors.refusal = _ON_ALL_RANKS if callback.ranks == "zero" and world_size > 1 else None
    answer = _guarded(partial(method, value), method, name=name, tensors=tensors, where=where)
    if isinstance(answer, Stop) and point not in ("on_start", "on_end"):
        return answer
    if answer is not None:
        text = f"{name}: {point} returned {answer!r} ({where})"
        help = "return None, or planc.Stop(reason) in a step"
        raise RunError(text, help=help, is_shared=False)
    return None


def call_metric(metric: Metric, view: StepView, *, tensors: GivenTensors | None, where: str) -> float:
    """This rank's number."""
    if tensors is not None:
        tensors.refusal = None
    name, call = f"metric {metric.name}", partial(metric.function, view)
    value = _guarded(call, metric.function, name=name, tensors=tensors, where=where)
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = f"{name} returned {type(value).__name__} ({where})"
        raise RunError(text, help="return a number, such as `tensor.norm()`", is_shared=False)
    return float(value)


def _guarded(
    call: Callable[[], Any],
    function: Callable[..., Any],
    *,
    name: str,
    tensors: GivenTensors | None,
    where: str,
) -> Any:
    """The result of a call; RunError for what it raises, and for tensors it wrote to."""
    try:
        result = call()
    except (*STOPS, RunError):
        raise
    except CollectiveError as error:
        text = f"{name} calls {error} {_place(error, function)} ({where})"
        raise RunError(text, help=_NO_COLLECTIVE, is_shared=False) from error
    except BaseException as error:
        text = f"{name} raised {type(error).__name__} {_place(error, function)} ({where}): {error}"
        code = exit_code(error)
        code = ExitCode.INPUT if code is ExitCode.INTERNAL else code
        raise RunError(text, code=code, is_shared=False) from error
    written = tensors.take_written() if tensors is not None else None
    if written is not None:
        raise RunError(
            f"{name} wrote to {written}, which it was given to read, {_start(function)} ({where})",
            help=_READ_ONLY,
            is_shared=False,
        )
    return result


def _place(error: BaseException, function: Callable[..., Any]) -> str:
    """The last line that an error passed in the file of the function, or else the last of all."""
    code, passed = _code(function), []
    traceback = error.__traceback__
    while traceback is not None:
        passed.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    own = [step for step in passed if code is not None and step[0].co_filename == code.co_filename]
    last, line = (own or passed)[-1]
    return f"at {last.co_filename}:{line} in {last.co_name}"


def _code(function: Callable[..., Any]) -> CodeType | None:
    """The code of a function, of a method, or of an instance that can be called; None without Python code."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def _start(function: Callable[..., Any]) -> str:
    """The name of a function with its first line."""
    code = _code(function)
    return f"in {code.co_name} at {code.co_filename}:{code.co_firstlineno}" if code else "in compiled code"
