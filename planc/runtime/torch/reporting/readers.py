"""The callbacks and metrics of a run: called at their points, with copies of what they ask for.

RunError for what their code raises, writes to, or returns wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import Log
from planc.runtime.callbacks import Callback, End, Metric, Start, StepView, Stop, defines
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.failures import exit_code
from planc.runtime.observer import Evaluation, Observer, SaveTimes, Step, StepMetrics
from planc.runtime.torch.parallel.collectives import CollectiveError
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.reporting.given_tensors import GivenTensors, WholeTensors
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights

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


@dataclass(slots=True)
class Readers(Observer):
    """Calls what reads a run, on this rank. It is an observer too, for the points that observers have."""

    run: Run
    callbacks: tuple[Callback, ...]
    metrics: tuple[Metric, ...]
    tensors: WholeTensors | None = None
    """None before the first step."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the step, if it is logged."""
    request: tuple[str, str] | None = None
    """The name of a callback of this rank that asks to end the run, and its reason."""
    _step: int = 0

    def before_update(self, figures: Step, weights: Weights, pipeline: Pipeline | None) -> None:
        """The step has its gradients."""
        self._step, self.values = figures.step, {}
        if self.tensors is None:
            self.tensors = WholeTensors(self.run, weights, pipeline)
        self.tensors.has_gradients = True
        view = self._view(figures)
        self._call_all("on_gradients", view)
        (log,) = (op for op in self.run.graph.step if isinstance(op, Log))
        if log.is_due(step=figures.step, num_steps=self.run.graph.num_steps):
            where, tensors = self._where, self.tensors
            own = [call_metric(metric, view, tensors=tensors, where=where) for metric in self.metrics]
            self.values = self._reduced(own)
        self.tensors.has_gradients = False

    def after_update(self, figures: Step) -> None:
        """The optimizer has changed the weights."""
        self._step = figures.step
        self._call_all("on_step", self._view(figures))

    def after_evaluations(self, figures: Step, evaluations: Sequence[Evaluation]) -> None:
        """The evaluations after the step are done."""
        self._step = figures.step
        self._call_all("on_evaluation", self._view(figures, evaluations))

    def started(self, *, first_step: int, num_steps: int) -> None:
        graph, launch = self.run.graph, self.run.launch
        start = Start(
            plan=graph.name,
            plan_hash=self.run.plan_hash,
            mesh={mesh_dim.value: size for mesh_dim, size in graph.mesh},
            first_step=first_step,
            num_steps=num_steps,
            directory=self.run.paths.run,
            rank=launch.rank,
            world_size=launch.world_size,
        )
        self._step = first_step - 1
        self._call_all("on_start", start)

    def stepped(self, metrics: StepMetrics) -> None:
        self._call_all("on_log", metrics)

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        self._call_all("on_save", directory)

    def ended(self, *, step: int) -> None:
        """The run has ended well."""
        self._call_all("on_end", End(step, self.run.graph.num_steps, self.run.paths.run))

    def _view(self, figures: Step, evaluations: Sequence[Evaluation] = ()) -> StepView:
        assert self.tensors is not None, "a step has weights"
        launch = self.run.launch
        return StepView(
            figures, self.tensors, rank=launch.rank, world_size=launch.world_size, evaluations=evaluations
        )

    def _call_all(self, point: str, value: object) -> None:
        launch = self.run.launch
        for callback in self.callbacks:
            if not defines(callback, point) or (callback.ranks == "zero" and launch.rank != 0):
                continue
            stop = call_callback(
                callback,
                point,
                value,
                tensors=self.tensors,
                world_size=launch.world_size,
                where=self._where,
            )
            if stop is not None:
                name = type(callback).__name__
                self.request = self.request or (name, stop.reason)
                self.run.observer.noted(f"{name} asks to end the run: {stop.reason}")

    @property
    def _where(self) -> str:
        return f"step {self._step}, rank {self.run.launch.rank}"

    def _reduced(self, own: Sequence[float]) -> dict[str, float]:
        """The metrics over all ranks; without those that are NaN or inf, which are reported once."""
        if not own:
            return {}
        values = torch.tensor(own, dtype=torch.float64)
        is_most = torch.tensor([metric.reduce == "max" for metric in self.metrics])
        world_size = self.run.launch.world_size
        if world_size > 1:
            summed, most = values.clone(), values
            dist.all_reduce(summed)
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            values = torch.where(is_most, most, summed)
        shares = [world_size if metric.reduce == "mean" else 1 for metric in self.metrics]
        reduced = {
            metric.name: value / share
            for metric, value, share in zip(self.metrics, values.tolist(), shares, strict=True)
        }
        for name, value in reduced.items():
            if not math.isfinite(value):
                text = f"warning: step {self._step}: metric {name} is {value}, and left out"
                self.run.observer.noted_once(f"metric {name}", text)
        return {name: value for name, value in reduced.items() if math.isfinite(value)}
