"""Devices as numbers, and what a plan asks of one. No hardware is looked at here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planc.record import record

_GIB = 2**30
_TERA, _GIGA = 10**12, 10**9


@record
class Device:
    """One accelerator. What is None is not known, and nothing that needs it is estimated.

    `memory_bytes` is what CUDA or ROCm reports as the device's total, which is less than the label says.
    `peak_flops` are dense bfloat16 FLOP a second. Bandwidths are bytes a second and, for links, in one
    direction: `link_bandwidth` to the devices of the same node, `nic_bandwidth` over the network, a device,
    `host_bandwidth` to the host's memory.
    """

    name: str
    memory_bytes: int
    peak_flops: float | None = None
    memory_bandwidth: int | None = None
    link_bandwidth: int | None = None
    nic_bandwidth: int | None = None
    devices_per_node: int | None = None
    host_bandwidth: int | None = None


def _device(
    name: str, *, gib: float, tera_flops: float, memory: float, link: int, nic: int, node: int, host: int
) -> Device:
    """A device from GiB, TFLOP/s, TB/s, and GB/s of links."""
    return Device(
        name,
        int(gib * _GIB),
        tera_flops * _TERA,
        int(memory * _TERA),
        link * _GIGA,
        nic * _GIGA,
        node,
        host * _GIGA,
    )


# Memory: the total that PyTorch prints, in out-of-memory messages and torchtitan's logs. FLOP/s and memory
# bandwidth: the vendors' data sheets, dense bfloat16, without sparsity; B200, GB200 and MI355X as torchtitan
# has them (tools/utils.py, get_peak_flops). Links: NVLink 3, 4 and 5 (600, 900 and 1800 GB/s both ways),
# Infinity Fabric (7 x 128 and 7 x 153 GB/s both ways). Network: an adapter for each device, as systems of
# that generation have it: 200 Gb/s with A100, 400 Gb/s with the others. Host: PCIe 4 and 5 with 16 lanes, and
# half of a Grace's NVLink-C2C, which two devices share. GeForce: the vendor's papers of each generation,
# with float32 accumulation; devices of a node send through the host's memory, at half of its rate, and over
# 10 Gb/s outside. L40S: over PCIe 4, and 100 Gb/s outside.
_TABLE = (
    _device("a100_40gb", gib=39.39, tera_flops=312, memory=1.555, link=300, nic=25, node=8, host=32),
    _device("a100", gib=79.15, tera_flops=312, memory=2.039, link=300, nic=25, node=8, host=32),
    _device("h100", gib=79.10, tera_flops=989, memory=3.35, link=450, nic=50, node=8, host=64),
    _device("h200", gib=139.72, tera_flops=989, memory=4.8, link=450, nic=50, node=8, host=64),
    _device("b200", gib=178.35, tera_flops=2250, memory=7.7, link=900, nic=50, node=8, host=64),
    _device("gb200", gib=184.0, tera_flops=2500, memory=8.0, link=900, nic=50, node=4, host=225),
    _device("mi300x", gib=191.98, tera_flops=1307, memory=5.3, link=448, nic=50, node=8, host=64),
    _device("mi355x", gib=287.98, tera_flops=2517, memory=8.0, link=537, nic=50, node=8, host=64),
    _device("l40s", gib=44.39, tera_flops=362, memory=0.864, link=32, nic=12, node=8, host=32),
    _device("rtx_3090", gib=23.57, tera_flops=71, memory=0.936, link=16, nic=1, node=8, host=32),
    _device("rtx_4090", gib=23.52, tera_flops=165.2, memory=1.008, link=16, nic=1, node=8, host=32),
    _device("rtx_5090", gib=31.36, tera_flops=209.5, memory=1.792, link=32, nic=1, node=8, host=64),
)

DEVICES: Mapping[str, Device] = {device.name: device for device in _TABLE}
"""Every device by the name that a plan gives it. `a100` has 80 GB."""

_WORD = re.compile(r"[a-z0-9]+")


def in_lower_case(name: str) -> str:
    """The name of a known device, written in any case, as a plan writes it; another name unchanged."""
    return name.lower() if name.lower() in DEVICES else name


def meant_device(name: str) -> str | None:
    """The known device of a longer name, such as `a100` for `a100_80gb` or `NVIDIA H100 80GB HBM3`."""
    words = _WORD.findall(name.lower())
    with_size = (f"{one}_{size}" for one in words for size in words)
    return next((one for one in (*with_size, *words) if one in DEVICES), None)


FITS, RISKY = 0.90, 1.0
"""Shares of a device's memory. Up to the first a peak fits: the rest is for the context (1 to 2 GB), for
communicators (about half a GB each), which PyTorch's allocator does not hold, and for the estimate's error.
"""


@record
class Change:
    """One or more changes of a plan after which it fits, with its peak then."""

    texts: tuple[str, ...]
    peak_bytes: int


@record
class PairDemand:
    """The memory that attention holds at a time for pairs of tokens, where that is much.

    `share_of` names what it is compared with, and `whole_bytes` is the size of that. `change` is the nearest
    change of the plan after which it isn't much, with the bytes for pairs that are left.
    """

    kernels: tuple[tuple[str, tuple[str, ...], int], ...]
    """Each kernel that holds any, the reasons why no better one runs, and its bytes."""
    share_of: str
    whole_bytes: int
    change: Change | None

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for _, _, num_bytes in self.kernels)

    @property
    def share(self) -> float:
        return self.num_bytes / self.whole_bytes


@record
class Demand:
    """A plan's demand on its device: the peak, the phase that reaches it, and its parts.

    `parts` are the largest first. `changes` are near plans that fit, the nearest first, and empty where the
    plan itself fits.
    """

    device: Device
    peak_bytes: int
    phase: str
    parts: tuple[tuple[str, int], ...]
    changes: tuple[Change, ...] = ()

    @property
    def share(self) -> float:
        """The peak as a share of the device's memory."""
        return self.peak_bytes / self.device.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak leaves what a process needs in addition."""
        return self.share <= FITS
