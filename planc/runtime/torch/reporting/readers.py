"""The callbacks and metrics of a run: called at their points, with copies of what they ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from planc.graph.ops import Log
from planc.runtime.callbacks import Callback, End, Metric, Start, StepView, defines
from planc.runtime.observer import Evaluation, Observer, SaveTimes, Step, StepMetrics
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.reporting.given_tensors import WholeTensors
from planc.runtime.torch.reporting.reading import call_callback, call_metric
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights


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
