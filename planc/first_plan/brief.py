"""The facts that a first plan is written for."""

from __future__ import annotations

from pathlib import Path

from planc.devices.hardware import Device
from planc.first_plan.practice import DataSize
from planc.first_plan.purpose import Purpose
from planc.record import record


@record
class Brief:
    """Everything that a first plan is written from.

    `device` is None for CPUs. `source` and `tokenizer` are calls as the plan writes them.
    """

    name: str
    model: str
    """The model as the plan writes it: a path in quotes, or `hub(...)`."""
    folder: Path
    """The directory of the plan."""
    purpose: Purpose
    devices: int
    node: int
    device: Device | None
    source: str
    tokenizer: str
    data: DataSize
    sequence_length: int | None = None
    tokens_per_step: int | None = None
    tokens_reason: str = "As given to planc new."
    steps: int | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
