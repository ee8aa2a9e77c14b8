"""The events of a run, for its observers: displays and files. The interpreter calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean loss over `labels` labels of text that is not trained on; `label` is its name in the plan.

    A loss of pairs is a mean over pairs, as are the rewards': they are None for other losses. Of texts with
    classes, `accuracy` is the share whose class has the largest logit.
    """

    label: str
    loss: float
    labels: int
    reward_margin: float | None = None
    reward_accuracy: float | None = None
    accuracy: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The numbers that the loss has, by name."""
        names = (figure.name for figure in fields(self) if figure.name != "label")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """One source of a mixture in a step: its positions, its labels, and their mean loss, None without any.

    `epoch` is how often its sequences have been consumed since the first step.
    """

    label: str
    tokens: int
    labels: int
    loss: float | None
    epoch: float


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step that is done. The figures are over all ranks, and the same on each."""

    step: int
    loss: float
    """The mean over `labels`, 0 if there are none."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    labels: int
    is_skipped: bool = False
    """Whether the optimizer changed no weight, as in a step without labels."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step, over all ranks. `loss` is the mean over `labels`, 0 where there are none.

    `tokens` are the step's positions, padding and masked ones too, as `tokens_per_step` of a plan counts
    them; `labels` are those in the mean of the loss. Rates count `tokens`: of the whole run, and per device.
    `memory_bytes` is the most that any rank held so far, of the kind `memory_kind`: `allocated` on a CUDA
    device, where `memory_reserved_bytes` is what the allocator took for it, or `process`, resident on the
    host. `phase_seconds` holds, for each phase, the longest of any rank; saves count toward the next line, as
    does what follows the step's read on a CUDA device.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    labels: int
    tokens_per_second: float
    tokens_per_second_per_device: float
    seconds: float
    memory_bytes: int
    epoch: float | None = None
    """The number of passes over the training data: of a mixture, over all of its sequences together."""
    sources: tuple[SourceMetrics, ...] = field(default=())
    """The step by source of a mixture; its sums are `tokens`, `labels` and the sum of the losses."""
    sample_ids: tuple[int, ...] = field(default=())
    evaluations: tuple[Evaluation, ...] = field(default=())
    """The evaluations after this step."""
    memory_kind: str = "process"
    memory_reserved_bytes: int | None = None
    tflops_per_second_per_device: float | None = None
    """10^12 model FLOPs per second, without the recomputation of activation checkpointing."""
    mfu: float | None = None
    """The fraction of the peak of the device that the plan names, up to 1."""
    compiled_graphs: int | None = None
    """The graphs that torch.compile has made so far, on the rank with the most; None without `compile`."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    is_skipped: bool | None = None
    """True if the optimizer did not change the weights, as for a step of 0 `labels`; else None."""
    stragglers: tuple[int, ...] = field(default=())
    """Ranks that slow down the others."""
    expert_load: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The tokens of this step that each expert got, over all ranks, by module of stacked experts."""
    expert_dropped: Mapping[str, int] = field(default_factory=dict)
    """The choices of this step that no expert took, as it was at its capacity, by module of experts with one.
    They count in `expert_load`."""
    balance_loss: float | None = None
    """The loss for the balance of experts that training adds to `loss`; None without one."""
    z_loss: float | None = None
    """The z-loss of routers that training adds to `loss`; None without one."""
    early_stop: str | None = None
    """The reason for which an evaluation ends the run after this step."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the program that started the run, by name."""


WaitCause = Literal["start", "memory", "copies", "ranks", "end"]
"""The causes of waits for a save behind training: its `start`; `memory` to copy into and `copies`, before the
optimizer's step; `ranks` that are asked whether it has ended; its `end`, before the next or the run's end."""


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """The seconds of a save behind training: until its commit, and until its copies were made.

    `waits` are the seconds that training waited for it, by cause.
    """

    seconds: float
    copied_seconds: float
    waits: Mapping[WaitCause, float]

    @property
    def blocked_seconds(self) -> float:
        return sum(self.waits.values())


class Observer:
    """The events of a run as methods, which do nothing here: displays and files override what they show."""

    def preparing(self, what: str) -> None:
        """Setup begins its next part, described in a line."""

    def branched(self, origin: Mapping[str, Any]) -> None:
        """The run began with the state of another run's checkpoint: its path, step, plan hash and digest."""

    def started(self, *, first_step: int, num_steps: int) -> None:
        """Setup is done; training starts at `first_step`."""

    def stepped(self, metrics: StepMetrics) -> None:
        """A step is done and due to be reported."""

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None:
        """An evaluation after an earlier `step` is done, which the run before had postponed."""

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        """A checkpoint is committed; `behind` is set if it was written during training."""

    def noted(self, text: str) -> None:
        """A message of one line."""


class Together(Observer):
    """Several observers, called one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = [*observers]
        self._kinds: set[str] = set()

    def noted_once(self, kind: str, text: str) -> None:
        """Note the first message of its kind."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.noted(text)

    def preparing(self, what: str) -> None:
        for observer in self.observers:
            observer.preparing(what)

    def branched(self, origin: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.branched(origin)

    def started(self, *, first_step: int, num_steps: int) -> None:
        for observer in self.observers:
            observer.started(first_step=first_step, num_steps=num_steps)

    def stepped(self, metrics: StepMetrics) -> None:
        for observer in self.observers:
            observer.stepped(metrics)

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None:
        for observer in self.observers:
            observer.evaluated(evaluation, step=step)

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        for observer in self.observers:
            observer.saved(directory, behind=behind)

    def noted(self, text: str) -> None:
        for observer in self.observers:
            observer.noted(text)
