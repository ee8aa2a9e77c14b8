"""The shares of a device's peaks that work reaches: each an interval, with its meaning and its source.

The low and the high end hold for nine of ten machines and runs; those of `whole` make that so for trainers
that no fit has seen, in view of their runs (`python -m tests.estimate.published_sources`). Fitted values
are those that `python -m tests.estimate.published_speed --fit` finds for one half of the catalogue's
published runs; the other half, and 191 runs that no fit has seen, score them. The rest is from vendors and
from NCCL's sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planc.record import record


@record
class Efficiency:
    """A coefficient: the value that is expected, and the two ends of what it can be."""

    low: float
    expected: float
    high: float
    source: str


@record
class Efficiencies:
    """The coefficients of an expected time. Shares are of a device's peaks."""

    matmul: Efficiency
    """Share of peak FLOP/s of large matmuls."""
    attention: Efficiency
    """Share of peak FLOP/s of attention kernels, of the pairs of tokens that they compute."""
    memory: Efficiency
    """Share of memory bandwidth of elementwise kernels and of the optimizer."""
    links: Efficiency
    """Share of a link's bandwidth that collectives inside a node reach."""
    network: Efficiency
    """Share of an adapter's bandwidth that collectives between nodes reach."""
    host_link: Efficiency
    """Share of the bandwidth to the host's memory that copies of pinned memory reach."""
    narrow_features: Efficiency
    """Features at which a matmul reaches half of `matmul`: narrow ones leave a part of the device idle."""
    exposed: Efficiency
    """Share of what overlaps with compute that costs time all the same."""
    link_step_seconds: Efficiency
    """One step of a ring inside a node."""
    network_step_seconds: Efficiency
    """One step of a ring between nodes."""
    call_seconds: Efficiency
    """The start of a collective."""
    kernel_seconds: Efficiency
    """The host's time to launch one kernel."""
    whole: Efficiency
    """The speed of a whole step, of what all others make of it: trainers and clusters differ by more than any
    coefficient. Its expected value is 1."""


SLOWEST_LAUNCH = 35e-6
"""Seconds of one launch of a kernel, hooks and Python around it among them, on a slow host."""

_FITTED = "fitted to 18 published runs"
_NCCL = "NCCL's tuning table (src/graph/tuning.cc, hwLat of the simple protocol)"

_AMPERE = Efficiencies(
    matmul=Efficiency(0.70, 0.80, 0.87, _FITTED),
    attention=Efficiency(0.22, 0.325, 0.60, _FITTED),
    memory=Efficiency(0.65, 0.80, 0.90, "published STREAM and copy kernels: 80 to 90 % of the data sheet"),
    # 2, 4 and 8 ranks of H100 reach 0.60, 0.72 and 0.77 in nccl-tests. In training, ranks also wait for the
    # slowest of them, and layouts are copied around the collective.
    links=Efficiency(0.25, 0.50, 0.77, "nccl-tests, less; set in view of the four published runs with tp"),
    network=Efficiency(0.50, 0.80, 0.95, "nccl-tests between nodes; congestion lowers it"),
    host_link=Efficiency(0.60, 0.80, 0.90, "copies of pinned memory: 24 to 27 of 32 GB/s, 50 to 57 of 64"),
    narrow_features=Efficiency(500, 267, 80, _FITTED),
    exposed=Efficiency(0.30, 0.112, 0.0, _FITTED),
    link_step_seconds=Efficiency(7e-6, 3.4e-6, 2e-6, _NCCL),
    network_step_seconds=Efficiency(28e-6, 14e-6, 7e-6, _NCCL),
    call_seconds=Efficiency(30e-6, 10e-6, 5e-6, "the launch of a kernel, and NCCL's base latency"),
    kernel_seconds=Efficiency(
        SLOWEST_LAUNCH,
        5e-6,
        3e-6,
        "PyTorch in eager mode launches 100 000 to 300 000 a second; 30 000 on a slow host",
    ),
    whole=Efficiency(0.60, 1.0, 1.35, "published runs of trainers that a fit has not seen"),
)
_HOPPER = replace(
    _AMPERE,
    matmul=Efficiency(0.47, 0.57, 0.68, f"{_FITTED}; power limits large matmuls"),
    attention=Efficiency(0.12, 0.177, 0.45, f"{_FITTED}; most of them with the kernels of 2023"),
)

EFFICIENCIES: Mapping[str, Efficiencies] = {"a100": _AMPERE, "a100_40gb": _AMPERE}
"""Efficiencies by device; the others have those of H100, whose runs they were fitted to."""
OTHERS = _HOPPER


def efficiencies_of(device: str) -> Efficiencies:
    """Return the efficiencies expected of a device, by its name."""
    return EFFICIENCIES.get(device, OTHERS)
