"""The CPUs of this machine as a device: its peaks, measured on all ranks at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from planc.devices.hardware import Device
from planc.estimate.efficiency import Efficiencies, Efficiency
from tests.dist.pool import run_ranks

DEVICE = "cpu"
_SECONDS = 0.5
"""Of each measurement."""
_FLOAT32_SHARE = 1 / 15
"""planc takes peaks as those of bfloat16, and float32 for this share of them."""
_MEMORY_BYTES = 8 * 2**30
_ROWS, _INNER, _OUTER = 1_024, 256, 704
_HEADS, _LENGTH, _HEAD_DIM = 8, 128, 32
_MESSAGE = 2**20


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one rank while all work: FLOP/s of matmuls and of attention, bytes a second of memory and of a
    link, and the seconds of a small collective and of a small operation."""

    values: Mapping[str, float]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in self.values.items())

    def device(self, num_ranks: int) -> Device:
        return Device(
            DEVICE,
            _MEMORY_BYTES,
            self.values["matmul"] / _FLOAT32_SHARE,
            int(self.values["memory"]),
            int(self.values["link"]),
            int(self.values["link"]),
            num_ranks,
        )

    @property
    def efficiencies(self) -> Efficiencies:
        """Shares of what is measured, so 1; what CPUs do while they send takes the same cores."""
        whole, nothing = _exactly(1.0), _exactly(0.0)
        return Efficiencies(
            matmul=whole,
            attention=_exactly(self.values["attention"] / self.values["matmul"]),
            memory=whole,
            links=whole,
            host_link=whole,
            network=whole,
            narrow_features=nothing,
            exposed=whole,
            link_step_seconds=nothing,
            network_step_seconds=nothing,
            call_seconds=_exactly(self.values["collective"]),
            kernel_seconds=_exactly(self.values["operation"]),
            whole=whole,
        )


def _exactly(value: float) -> Efficiency:
    return Efficiency(value, value, value, "measured on this machine")


def measured_peaks(num_ranks: int) -> Peaks:
    """The mean of all ranks."""
    found = run_ranks(peaks_of_rank, num_ranks)
    return Peaks({name: sum(one[name] for one in found) / num_ranks for name in found[0]})


def peaks_of_rank(rank: int, world_size: int) -> dict[str, float]:
    torch.set_num_threads(1)
    left, right = torch.randn(_ROWS, _INNER), torch.randn(_INNER, _OUTER)
    query = torch.randn(8, _HEADS, _LENGTH, _HEAD_DIM)
    long, small = torch.randn(4 * 2**20), torch.randn(16)
    part, whole = torch.randn(_MESSAGE // 4), torch.empty(world_size * _MESSAGE // 4)

    def gather() -> None:
        dist.all_gather_single(whole, part)

    attention_flops = 4 * query.numel() * _LENGTH
    attention = _each(lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True))
    return {
        "matmul": 2 * _ROWS * _INNER * _OUTER / _each(lambda: left @ right),
        "attention": attention_flops / 2 / attention,
        "memory": 2 * long.nbytes / _each(lambda: long + 1),
        "link": (world_size - 1) * _MESSAGE / _each(gather),
        "collective": _each(lambda: _sum(small)),
        "operation": _each(lambda: small + 1),
    }


def _sum(value: Tensor) -> None:
    dist.all_reduce(value)


def _each(work: Callable[[], object]) -> float:
    """The seconds of one call, of equally many on every rank, while all ranks do the same."""
    began = time.perf_counter()
    work()
    number = torch.tensor([max(3, int(_SECONDS / max(time.perf_counter() - began, 1e-6)))])
    dist.all_reduce(number, op=dist.ReduceOp.MIN)
    times = []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(int(number)):
            work()
        times.append((time.perf_counter() - began) / int(number))
    return median(times)
