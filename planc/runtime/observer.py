"""What a run tells those who watch it. Displays and files implement this; the interpreter calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean loss over `labels` labels of text that is not trained on; `label` is the plan's."""

    label: str
    loss: float
    labels: int


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step, over all ranks. `loss` is the mean over `labels`, 0 where there are none.

    `tokens` are the step's positions, padding and masked ones too, as `tokens_per_step` of a plan counts
    them; `labels` are those that the loss is the mean of. Rates are of `tokens`: of the whole run, and of one
    device. `memory_bytes` is the most that any rank held so far, of what `memory_kind` says: `allocated` on a
    CUDA device, where `memory_reserved_bytes` is what the allocator took for it, or `process`, resident on
    the host. `phase_seconds` holds, for each phase, the longest of any rank; saves count to the next line's.
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
    sample_ids: tuple[int, ...] = field(default=())
    evaluations: tuple[Evaluation, ...] = field(default=())
    """Made after this step."""
    memory_kind: str = "process"
    memory_reserved_bytes: int | None = None
    tflops_per_second_per_device: float | None = None
    """10^12 FLOPs of the model a second, without what checkpointing computes again."""
    mfu: float | None = None
    """Of the peak of the device that the plan names, up to 1."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    is_skipped: bool | None = None
    """True if the optimizer left the weights as they were, as it does for a step of 0 `labels`; else None."""
    stragglers: tuple[int, ...] = field(default=())
    """Ranks that hold the others up."""


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """How long a save took until it was committed, and for how much of that training waited."""

    seconds: float
    blocked_seconds: float


class Observer(Protocol):
    def started(self, *, first_step: int, num_steps: int) -> None:
        """Setup is done; training goes on at `first_step`."""

    def stepped(self, metrics: StepMetrics) -> None:
        """A step is done, and due to be reported."""

    def evaluated(self, found: Evaluation, *, step: int) -> None:
        """An evaluation of an earlier `step` is made up for, which the run before had left."""

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        """A checkpoint is committed; `behind` where it was written while training went on."""

    def noted(self, text: str) -> None:
        """Something worth one line."""


@dataclass(frozen=True, slots=True)
class Together:
    """Several observers, told one after the other."""

    observers: tuple[Observer, ...]

    def started(self, *, first_step: int, num_steps: int) -> None:
        for one in self.observers:
            one.started(first_step=first_step, num_steps=num_steps)

    def stepped(self, metrics: StepMetrics) -> None:
        for one in self.observers:
            one.stepped(metrics)

    def evaluated(self, found: Evaluation, *, step: int) -> None:
        for one in self.observers:
            one.evaluated(found, step=step)

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        for one in self.observers:
            one.saved(directory, behind=behind)

    def noted(self, text: str) -> None:
        for one in self.observers:
            one.noted(text)


class Silent:
    """Watches nothing: for ranks other than 0, and for tests."""

    def started(self, *, first_step: int, num_steps: int) -> None: ...

    def stepped(self, metrics: StepMetrics) -> None: ...

    def evaluated(self, found: Evaluation, *, step: int) -> None: ...

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None: ...

    def noted(self, text: str) -> None: ...
