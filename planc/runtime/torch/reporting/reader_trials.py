"""The trials of the plan's own metrics and callbacks: on made-up steps, before the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from planc.runtime.callbacks import Callback, Metric, Start, StepView, defines
from planc.runtime.observer import Evaluation, Step
from planc.runtime.torch.extensions.trials import RefusedError
from planc.runtime.torch.parallel.collectives import NoCollectives
from planc.runtime.torch.reporting.given_tensors import MadeUpTensors, Outline
from planc.runtime.torch.reporting.readers import call_callback, call_metric

_NUM_STEPS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts of a run that made-up steps have: parameters, ranks, and the labels of evaluations."""

    outline: Outline
    frozen: frozenset[str]
    device: torch.device
    plan: str
    mesh: tuple[tuple[str, int], ...]
    world_size: int
    rank: int = 0
    labels: Sequence[str] = ()

    @property
    def where(self) -> str:
        return f"a trial before step 1, rank {self.rank}"


def try_callback(make: Callable[[], Callback], setting: Setting) -> tuple[Callback, tuple[str, ...]]:
    """A callback that has seen nothing, and what was shown of the code. RunError or RefusedError if it fails.

    Points that have paths of a run are not tried: `on_log`, `on_save` and `on_end`.
    """
    answers = []
    for seed in range(2):
        with _watched(seed):
            answers.append(_stops(make(), setting))
    if answers[0] != answers[1]:
        raise RefusedError(
            "asks to stop at other steps when it sees the same ones again",
            "decide by the steps alone: no random numbers, nothing kept outside of `self`",
        )
    return make(), ("writes to nothing that it reads", "asks to stop at the same steps each time")


def try_metric(make: Callable[[], Metric], setting: Setting) -> tuple[Metric, tuple[str, ...]]:
    """A metric that has seen nothing, and what was shown of the code. Raises as `try_callback`."""
    numbers = []
    for seed in range(2):
        with _watched(seed):
            numbers.append(_numbers(make(), setting))
    if repr(numbers[0]) != repr(numbers[1]):
        raise RefusedError(
            "gives other numbers for the same steps",
            "compute them from the steps alone: no random numbers, nothing kept outside of `self`",
        )
    return make(), ("writes to nothing that it reads", "the same each time")


@contextmanager
def _watched(seed: int) -> Iterator[None]:
    """The context of a trial: without collectives, and with PyTorch's settings as they were."""
    before = _settings()
    with torch.random.fork_rng(), NoCollectives():
        torch.manual_seed(seed)
        yield
    after = _settings()
    if after != before:
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        torch.use_deterministic_algorithms(before[2])
        raise RefusedError("changes PyTorch's settings, by which the run trains", "leave them as they are")


def _settings() -> tuple[torch.dtype, bool, bool]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _stops(callback: Callback, setting: Setting) -> list[tuple[int, str, str]]:
    """The requests to stop in the made-up steps: the step, the point and the reason."""
    tensors, stops = _tensors(setting), []

    def call(point: str, value: object, step: int) -> None:
        if not defines(callback, point):
            return
        stop = call_callback(
            callback, point, value, tensors=tensors, world_size=setting.world_size, where=setting.where
        )
        if stop is not None:
            stops.append((step, point, stop.reason))

    with TemporaryDirectory(prefix="planc-trial-") as folder:
        call("on_start", _start(setting, Path(folder)), 0)
        for view in _views(setting, tensors):
            tensors.step = view.step
            tensors.has_gradients = True
            call("on_gradients", view, view.step)
            tensors.has_gradients = False
            call("on_step", view, view.step)
            call("on_evaluation", view, view.step)
    return stops


def _numbers(metric: Metric, setting: Setting) -> list[float]:
    tensors = _tensors(setting)
    tensors.has_gradients = True
    numbers = []
    for view in _views(setting, tensors):
        tensors.step = view.step
        numbers.append(call_metric(metric, view, tensors=tensors, where=setting.where))
    return numbers


def _tensors(setting: Setting) -> MadeUpTensors:
    return MadeUpTensors(setting.outline, frozen=setting.frozen, device=setting.device)


def _start(setting: Setting, folder: Path) -> Start:
    return Start(
        plan=setting.plan,
        plan_hash="",
        mesh=dict(setting.mesh),
        first_step=1,
        num_steps=_NUM_STEPS,
        directory=folder,
        rank=setting.rank,
        world_size=setting.world_size,
        is_trial=True,
    )


def _views(setting: Setting, tensors: MadeUpTensors) -> Iterator[StepView]:
    """Steps with a falling loss."""
    for step in range(1, _NUM_STEPS + 1):
        loss = 4.0 / step
        yield StepView(
            Step(step=step, loss=loss, grad_norm=1.0 / step, learning_rate=1e-3, labels=128),
            tensors,
            rank=setting.rank,
            world_size=setting.world_size,
            evaluations=[Evaluation(label, loss, 128) for label in setting.labels],
            is_trial=True,
        )
