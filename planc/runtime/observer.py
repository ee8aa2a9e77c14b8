"""What a run tells those who watch it. Displays and files implement this; the interpreter calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean loss over `tokens` labels of text that is not trained on; `label` is the plan's."""

    label: str
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step, over all ranks. `memory_bytes` is the most that any rank's device held so far."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    tokens_per_second: float
    seconds: float
    memory_bytes: int
    sample_ids: tuple[int, ...] = field(default=())
    evaluations: tuple[Evaluation, ...] = field(default=())
    """Made after this step."""


class Observer(Protocol):
    def started(self, *, first_step: int, num_steps: int) -> None:
        """Setup is done; training goes on at `first_step`."""

    def stepped(self, metrics: StepMetrics) -> None:
        """A step is done, and due to be reported."""

    def saved(self, directory: Path) -> None:
        """A checkpoint is committed."""

    def noted(self, text: str) -> None:
        """Something worth one line."""


class Silent:
    """Watches nothing: for ranks other than 0, and for tests."""

    def started(self, *, first_step: int, num_steps: int) -> None: ...

    def stepped(self, metrics: StepMetrics) -> None: ...

    def saved(self, directory: Path) -> None: ...

    def noted(self, text: str) -> None: ...
