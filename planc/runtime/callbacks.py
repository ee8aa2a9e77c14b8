"""Callbacks at stated points of a run, and metrics: a program watches a run, and never changes it."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from planc.extend.decorators import POINTS
from planc.extend.decorators import Stop as Stop
from planc.runtime.observer import Evaluation, Step, StepMetrics

Ranks = Literal["zero", "all"]
Reduction = Literal["mean", "sum", "max"]
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Start:
    """A run whose setup is over. `mesh` has the size of each mesh dim, such as `{"dp_shard": 2, "tp": 2}`."""

    plan: str
    plan_hash: str
    mesh: Mapping[str, int]
    first_step: int
    num_steps: int
    directory: Path
    rank: int
    world_size: int
    is_trial: bool = False
    """Whether planc made it up, to try a callback of a plan. `directory` is then empty, and removed."""


@dataclass(frozen=True, slots=True)
class End:
    """A run that ended well, after `step`: at its last, or because a signal or a callback asked."""

    step: int
    num_steps: int
    directory: Path


class Tensors(Protocol):
    """Whole tensors of the training state, as copies. A torch.Tensor is `Any` here: no torch is imported."""

    def names(self) -> Sequence[str]: ...

    def parameter(self, name: str) -> Any: ...

    def gradient(self, name: str) -> Any: ...


class StepView:
    """One step, to read. Its figures are over all ranks, and the same on each.

    Tensors are whole and detached, as on one device, and copies: writing to one would change nothing, so
    planc refuses it. They are gathered over all ranks when asked for, which every rank must do in the same
    order: only callbacks with `ranks = "all"` and metrics may ask, or any in a run of one rank.
    """

    __slots__ = ("_tensors", "evaluations", "figures", "is_trial", "rank", "world_size")

    def __init__(
        self,
        figures: Step,
        tensors: Tensors,
        *,
        rank: int,
        world_size: int,
        evaluations: Sequence[Evaluation] = (),
        is_trial: bool = False,
    ) -> None:
        self.figures, self.rank, self.world_size = figures, rank, world_size
        self.evaluations = tuple(evaluations)
        """The evaluations after the step, for `on_evaluation`."""
        self.is_trial = is_trial
        """True if planc made the step up, to try code of a plan before the first step."""
        self._tensors = tensors

    @property
    def step(self) -> int:
        """The number of the step, from 1."""
        return self.figures.step

    @property
    def loss(self) -> float:
        """The mean over the step's labels, 0 if there are none."""
        return self.figures.loss

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients, before clipping."""
        return self.figures.grad_norm

    @property
    def learning_rate(self) -> float:
        return self.figures.learning_rate

    @property
    def labels(self) -> int:
        return self.figures.labels

    @property
    def parameter_names(self) -> Sequence[str]:
        """The names of all parameters, in the model's order; of tied ones, the first."""
        return self._tensors.names()

    def parameter(self, name: str) -> Any:
        """A parameter's values: a torch.Tensor of its whole shape. KeyError for an unknown name."""
        return self._tensors.parameter(name)

    def gradient(self, name: str) -> Any:
        """A parameter's gradient before clipping: a torch.Tensor, or None if the parameter has none.

        RuntimeError after the optimizer's step, which uses them up.
        """
        return self._tensors.gradient(name)


class Callback:
    """Reads a run at stated points. Subclass it, and define the methods that you need.

    `ranks` says where it is called: on rank 0 (`zero`), or on each (`all`), as tensors need. What a method
    raises ends the run, and the error names callback, step and rank. A method may return `Stop(reason)`.
    """

    ranks: Ranks = "zero"

    def on_start(self, start: Start) -> None:
        """Setup is over, and the first step comes next."""

    def on_gradients(self, step: StepView) -> Stop | None:
        """The step has its gradients, and the optimizer has not changed a weight yet."""

    def on_step(self, step: StepView) -> Stop | None:
        """The optimizer has changed the weights."""

    def on_evaluation(self, step: StepView) -> Stop | None:
        """The evaluations after the step are done: `step.evaluations`."""

    def on_log(self, metrics: StepMetrics) -> Stop | None:
        """The step's line is written to metrics.jsonl; on a CUDA device, in a later step."""

    def on_save(self, checkpoint: Path) -> Stop | None:
        """A checkpoint is committed, by all ranks."""

    def on_end(self, end: End) -> None:
        """The run has ended well, and everything is saved."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of each logged step, in metrics.jsonl under `custom`, and in trackers as `custom/NAME`.

    `function` is called on all ranks, before the optimizer's step. What it returns is reduced over all of
    them: their mean, sum, or max.
    """

    name: str
    function: Callable[[StepView], float]
    reduce: Reduction = "mean"


def metric(*, reduce: Reduction) -> Callable[[Callable[[StepView], float]], Metric]:
    """Make a metric of a function, with its name: `@planc.metric(reduce="mean")`."""
    return lambda function: Metric(function.__name__, function, reduce)


def require_callbacks(callbacks: Iterable[object]) -> tuple[Callback, ...]:
    """The callbacks; ValueError for anything else, and for a method that would never be called."""
    given = tuple(callbacks)
    for each in given:
        if not isinstance(each, Callback):
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise ValueError(f"a callback must be an instance of a subclass of planc.Callback, not {what}")
        name = type(each).__name__
        if each.ranks not in ("zero", "all"):
            raise ValueError(f"{name}.ranks must be `zero` or `all`, not {each.ranks!r}")
        for method in dir(each):
            if method.startswith("on_") and method not in POINTS:
                close = difflib.get_close_matches(method, POINTS, n=1)
                help = f"did you mean {close[0]}?" if close else f"the points are {', '.join(POINTS)}"
                raise ValueError(f"{name}.{method} would never be called: {help}")
    return tuple(each for each in given if isinstance(each, Callback))


def require_metrics(metrics: Iterable[object]) -> tuple[Metric, ...]:
    """The metrics; ValueError for anything else, and for two of one name."""
    given = tuple(metrics)
    for each in given:
        if not isinstance(each, Metric):
            help = "write @planc.metric(reduce=...) above the function" if inspect.isfunction(each) else ""
            raise ValueError(f"a metric must be a planc.Metric, not {each!r}{help and f': {help}'}")
        if not _WORD.fullmatch(each.name):
            raise ValueError(f"the name of a metric must be a word of letters, digits and _: {each.name!r}")
        if each.reduce not in ("mean", "sum", "max"):
            text = f"metric {each.name}: reduce must be `mean`, `sum` or `max`"
            raise ValueError(f"{text}, not {each.reduce!r}")
    names = [each.name for each in given if isinstance(each, Metric)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two metrics have the name {twice}")
    return tuple(each for each in given if isinstance(each, Metric))


def defines(callback: Callback, point: str) -> bool:
    """Whether a callback does anything at a point."""
    return getattr(type(callback), point) is not getattr(Callback, point)


def names_of(callbacks: Iterable[Callback], metrics: Iterable[Metric]) -> tuple[str, ...]:
    """One text for each, the same on every rank that has the same."""
    return (
        *(f"{type(each).__name__} ({each.ranks})" for each in callbacks),
        *(f"{each.name} ({each.reduce})" for each in metrics),
    )
