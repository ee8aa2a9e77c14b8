"""The calibration of a machine from measured runs: two scales and a launch's time in a small JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from planc.record import record
from planc.strict_json import loads as loads_json

FORMAT_VERSION = 3
WARMUP_STEPS = 3
"""Steps to ignore: they compile, allocate and fill caches."""
SMALLEST_SCALE, LARGEST_SCALE = 0.01, 100.0
SLOWEST_LAUNCH, FASTEST_LAUNCH = 1e-4, 1e-6
"""Seconds that a host takes to launch one kernel."""


@record
class Calibration:
    """The speed of a machine, as a multiple of the expectation; None for what no run measured.

    `compute_scale` is of matmuls, attention and memory, `communication_scale` of links and network.
    `machine` is a name chosen by the user, `device` the name of the device, `date` the day of the run.
    """

    machine: str
    device: str
    date: str
    compute_scale: float | None
    communication_scale: float | None
    launch_seconds: float | None = None
    """The host's time to launch one kernel, of a run whose device waited for it."""

    @property
    def source(self) -> str:
        """The description to print with a predicted time."""
        scales = (("compute", self.compute_scale), ("communication", self.communication_scale))
        texts = [
            f"{name} {'not measured' if value is None else f'{value:.3f} x the expected'}"
            for name, value in scales
        ]
        if self.launch_seconds is not None:
            texts.append(f"launches {1e6 * self.launch_seconds:.1f} us each")
        return f"{self.machine}, {self.device}, {self.date}: {', '.join(texts)}"


def dumps(calibration: Calibration) -> str:
    """The file's text."""
    return json.dumps({"format_version": FORMAT_VERSION, **asdict(calibration)}, indent=2) + "\n"


def loads(text: str) -> Calibration:
    """The calibration in a file's text. Raises ValueError with the fault."""
    try:
        document = loads_json(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    measured = "compute_scale", "communication_scale", "launch_seconds"
    names = ("format_version", "machine", "device", "date", *measured)
    if not isinstance(document, dict) or sorted(document) != sorted(names):
        raise ValueError(f"expected an object with {', '.join(names)}")
    if document["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format_version {document['format_version']!r} is not {FORMAT_VERSION}")
    for name in ("machine", "device", "date"):
        if not isinstance(document[name], str) or not document[name].strip():
            raise ValueError(f"`{name}` must be a string")
    return Calibration(
        machine=document["machine"],
        device=document["device"],
        date=document["date"],
        compute_scale=_number(document, "compute_scale", SMALLEST_SCALE, LARGEST_SCALE),
        communication_scale=_number(document, "communication_scale", SMALLEST_SCALE, LARGEST_SCALE),
        launch_seconds=_number(document, "launch_seconds", FASTEST_LAUNCH, SLOWEST_LAUNCH),
    )


def _number(document: dict[str, Any], name: str, low: float, high: float) -> float | None:
    value = document[name]
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise ValueError(f"`{name}` must be a number from {low:g} to {high:g}, or null")
    return float(value)


def step_seconds(lines: Sequence[str]) -> float:
    """The median duration of a step in seconds, from the lines of a run's metrics.jsonl.

    The first steps are left out. Raises ValueError for a file that is not from a run, or is too short.
    """
    durations = []
    for number, line in enumerate(lines, 1):
        try:
            seconds = loads_json(line)["seconds"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"line {number} has no `seconds`") from None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
            raise ValueError(f"line {number}: `seconds` is {seconds!r}")
        durations.append(seconds)
    if len(durations) <= WARMUP_STEPS:
        logged = "1 step is" if len(durations) == 1 else f"{len(durations)} steps are"
        raise ValueError(f"{logged} logged; more than {WARMUP_STEPS} are needed")
    # It brings fractions and decimals, for which every check would wait.
    from statistics import median

    return median(durations[WARMUP_STEPS:])
