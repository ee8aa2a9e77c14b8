"""The callbacks and metrics of a run: called at their points, with copies of what they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planc.graph.ops import Log
from planc.runtime.callbacks import Callback, End, Metric, Start, StepView, Stop, defines
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.failures import exit_code
from planc.runtime.observer import Evaluation, SaveTimes, Step, StepMetrics
from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages
from planc.runtime.torch.parallel.packing import gathered, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.export import without_gather_warnings

_ON_ALL_RANKS = 'tensors are gathered over all ranks: set `ranks = "all"` in the callback'
_READ_ONLY = "a callback reads: work on a copy, `tensor.clone()`"


class WholeTensors:
    """The parameters and gradients of a step, gathered one at a time. All ranks ask for the same."""

    def __init__(self, run: Run, weights: Weights, pipeline: Pipeline | None) -> None:
        self._run, self._weights, self._pipeline = run, weights, pipeline
        self._packings = packed_parameters(weights.model)
        stages = pipeline.activations if pipeline is not None else None
        self._outline = outline_of_all_stages(weights.parameters, stages=stages)
        self.refusal: str | None = None
        """The reason that nothing may be gathered now."""
        self.has_gradients = False
        self._given: list[tuple[str, Tensor, int]] = []

    def names(self) -> Sequence[str]:
        return tuple(self._outline)

    def parameter(self, name: str) -> Tensor:
        whole = self._whole(name, lambda parameter: parameter)
        assert whole is not None, "every parameter has values"
        return whole

    def gradient(self, name: str) -> Tensor | None:
        if not self.has_gradients:
            raise RuntimeError("only on_gradients and metrics have gradients: the optimizer uses them up")
        return self._whole(name, lambda parameter: parameter.grad)

    def take_written(self) -> str | None:
        """The name of a tensor that was written to since it was given; forget all that were."""
        given, self._given = self._given, []
        return next((name for name, tensor, version in given if tensor._version != version), None)

    @torch.no_grad()
    def _whole(self, name: str, part: Callable[[nn.Parameter], Tensor | None]) -> Tensor | None:
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        if name not in self._outline:
            raise KeyError(f"the model has no parameter {name}")
        parameter = self._weights.parameters.get(name)
        own = None if parameter is None else part(parameter)
        if self._pipeline is not None:
            whole = self._from_stage(name, own)
        elif own is None or parameter is None:
            return None
        else:
            whole = self._gathered(own, parameter)
        if whole is not None:
            self._given.append((name, whole, whole._version))
        return whole

    def _gathered(self, own: Tensor, parameter: nn.Parameter) -> Tensor:
        with without_gather_warnings():
            # A copy, also of what one rank holds whole.
            return gathered(own.detach(), self._packings.get(parameter)).clone()

    def _from_stage(self, name: str, own: Tensor | None) -> Tensor | None:
        """A tensor of the stage that has it, sent to the others."""
        pipeline, (dtype, shape) = self._pipeline, self._outline[name]
        assert pipeline is not None, "only a pipeline has stages"
        source = pipeline.rank_of(name)
        parameter = self._weights.parameters.get(name)
        device = self._run.weights_device
        has_it = torch.tensor(own is not None, device=device)
        whole = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if own is not None and parameter is not None:
            whole = self._gathered(own, parameter)
        if source is None:
            return whole if own is not None else None
        dist.broadcast(has_it, group=pipeline.activations, group_src=source)
        if not has_it.item():
            return None
        dist.broadcast(whole, group=pipeline.activations, group_src=source)
        return whole


@dataclass(slots=True)
class Readers:
    """Calls what reads a run, on this rank. It is an observer too, for the points that observers have."""

    run: Run
    callbacks: tuple[Callback, ...]
    metrics: tuple[Metric, ...]
    tensors: WholeTensors | None = None
    """None before the first step."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the step, if it is logged."""
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
            self.values = self._reduced([self._measured(metric, view) for metric in self.metrics])
        self.tensors.has_gradients = False

    def after_update(self, figures: Step) -> None:
        """The optimizer has changed the weights."""
        self._call_all("on_step", self._view(figures))

    def branched(self, origin: Mapping[str, Any]) -> None: ...

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

    def preparing(self, what: str) -> None: ...

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None: ...

    def noted(self, text: str) -> None: ...

    def _view(self, figures: Step) -> StepView:
        assert self.tensors is not None, "a step has weights"
        launch = self.run.launch
        return StepView(figures, self.tensors, rank=launch.rank, world_size=launch.world_size)

    def _call_all(self, point: str, value: object) -> None:
        for callback in self.callbacks:
            if defines(callback, point) and (callback.ranks == "all" or self.run.launch.rank == 0):
                self._call(callback, point, value)

    def _call(self, callback: Callback, point: str, value: object) -> None:
        name, method = type(callback).__name__, getattr(callback, point)
        if self.tensors is not None:
            is_refused = callback.ranks == "zero" and self.run.launch.world_size > 1
            self.tensors.refusal = _ON_ALL_RANKS if is_refused else None
        answer = self._guarded(f"callback {name}", point, lambda: method(value))
        if isinstance(answer, Stop) and point not in ("on_start", "on_end"):
            self.run.notice.ends_early = True
            self.run.observer.noted(f"{name} asks to end the run: {answer.reason}")
        elif answer is not None:
            text = f"callback {name}: {point} returned {answer!r}"
            raise self._error(text, help="return None, or planc.Stop(reason) in a step")

    def _measured(self, metric: Metric, view: StepView) -> float:
        if self.tensors is not None:
            self.tensors.refusal = None
        value = self._guarded(f"metric {metric.name}", "", lambda: metric.function(view))
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            help = "return a number, such as `tensor.norm()`"
            raise self._error(f"metric {metric.name} returned {type(value).__name__}", help=help)
        return float(value)

    def _guarded(self, name: str, point: str, call: Callable[[], Any]) -> Any:
        """The result of a program's own code; RunError for what it raises, and for tensors it wrote to."""
        try:
            result = call()
        except STOPS:
            raise
        except RunError:
            raise
        except BaseException as error:
            place = f" in {point}" if point else ""
            text = f"{name} raised {type(error).__name__}{place} ({self._where}): {error}"
            code = exit_code(error)
            code = ExitCode.INPUT if code is ExitCode.INTERNAL else code
            raise RunError(text, code=code, help=_line_of(error), is_shared=False) from error
        written = self.tensors.take_written() if self.tensors is not None else None
        if written is not None:
            raise self._error(f"{name} wrote to {written}, which it was given to read", help=_READ_ONLY)
        return result

    def _error(self, text: str, *, help: str) -> RunError:
        return RunError(f"{text} ({self._where})", help=help, is_shared=False)

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


def _line_of(error: BaseException) -> str | None:
    """The line of the program's own file that raised it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return None if last is None else f"it was raised at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
