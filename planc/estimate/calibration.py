"""The calibration of a machine from a measured run: two efficiencies in a small JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from planc.record import record
from planc.strict_json import loads as loads_json

FORMAT_VERSION = 1
WARMUP_STEPS = 3
"""Steps to ignore: they compile, allocate and fill caches."""


@record
class Calibration:
    """Utilization of a device's peaks in a run; None for a peak that did not limit the run.

    `machine` is a name chosen by the user, `device` the name of the device with these peaks,
    `date` the day of the run.
    """

    machine: str
    device: str
    date: str
    gemm_efficiency: float | None
    bus_efficiency: float | None

    @property
    def source(self) -> str:
        """The description to print with a predicted time."""
        scalars = (("gemm", self.gemm_efficiency), ("bus", self.bus_efficiency))
        texts = [f"{name} {'not measured' if value is None else f'{value:.3f}'}" for name, value in scalars]
        return f"{self.machine}, {self.device}, {self.date}: {', '.join(texts)}"


def dumps(calibration: Calibration) -> str:
    """The file's text."""
    return json.dumps({"format_version": FORMAT_VERSION, **asdict(calibration)}, indent=2) + "\n"


def loads(text: str) -> Calibration:
    """The calibration in a file's text. Raises ValueError with the fault."""
    try:
        document = loads_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    names = ("format_version", "machine", "device", "date", "gemm_efficiency", "bus_efficiency")
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
        gemm_efficiency=_efficiency(document, "gemm_efficiency"),
        bus_efficiency=_efficiency(document, "bus_efficiency"),
    )


def _efficiency(document: dict[str, Any], name: str) -> float | None:
    value = document[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"`{name}` must be a number above 0 and up to 1, or null")
    return float(value)


def step_seconds(lines: Sequence[str]) -> float:
    """The median duration of a step in seconds, from the lines of a run's metrics.jsonl.

    The first steps are left out. Raises ValueError for a file that is not from a run, or is too short.
    """
    found = []
    for number, line in enumerate(lines, 1):
        try:
            seconds = json.loads(line)["seconds"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"line {number} has no `seconds`") from None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
            raise ValueError(f"line {number}: `seconds` is {seconds!r}")
        found.append(seconds)
    if len(found) <= WARMUP_STEPS:
        logged = "1 step is" if len(found) == 1 else f"{len(found)} steps are"
        raise ValueError(f"{logged} logged; more than {WARMUP_STEPS} are needed")
    # It brings fractions and decimals, for which every check would wait.
    from statistics import median

    return median(found[WARMUP_STEPS:])
