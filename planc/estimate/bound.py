"""The least time of a step: what no run of the plan can beat on its device.

Every part of the machine works at its peak, and all at the same time: compute, the links inside a node and
the network, of which the slowest counts. Collectives move the least bytes of any algorithm. Attention
computes the pairs of tokens that see each other, and no more. What follows overlaps with nothing: replicas
without FSDP sum their last gradients, and then the optimizer moves its bytes through memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from planc.devices.hardware import Device
from planc.estimate.result import Collective
from planc.estimate.routes import members_in_node, route
from planc.estimate.step_work import StepWork
from planc.record import record
from planc.vocab import DType

_LEAST_SHARE = {DType.FLOAT32: 1 / 2, DType.FLOAT64: 1 / 8}
"""The most of bfloat16's peak FLOP/s that another dtype reaches on any device: TensorFloat-32, and float64 on
MI300X."""


@record
class StepBound:
    """The least seconds of one step, by cause."""

    compute_seconds: float
    link_seconds: float
    network_seconds: float
    replicas_seconds: float
    """The time of the last gradients' sum over replicas, which starts when backward ends."""
    optimizer_seconds: float
    optimizer_bytes: int
    """The bytes that the optimizer moves for each element."""

    @property
    def step_seconds(self) -> float:
        slowest = max(self.compute_seconds, self.link_seconds, self.network_seconds)
        return slowest + self.replicas_seconds + self.optimizer_seconds

    @property
    def limit(self) -> str:
        """What takes the most time until backward ends."""
        parts = (
            (self.compute_seconds, "compute"),
            (self.link_seconds, "links of a node"),
            (self.network_seconds, "network"),
        )
        return max(parts)[1]


def knows_peaks(step: StepWork, device: Device, *, node: int | None) -> bool:
    """Whether the device has every peak that the step's times need."""
    routes = [
        route(one, members_in_node(step.mesh, one.over, node)) for one in (*step.collectives, *step.behind)
    ]
    needed = [device.peak_flops, device.memory_bandwidth]
    needed += [device.link_bandwidth] if any(one.link_bytes for one in routes) else []
    needed += [device.nic_bandwidth] if any(one.nic_bytes for one in routes) else []
    return None not in needed


def step_bound(step: StepWork, device: Device, *, devices_per_node: int | None = None) -> StepBound | None:
    """The bound on a device; None if a peak of the device is unknown.

    `devices_per_node` is the plan's, or the device's own.
    """
    node = devices_per_node or device.devices_per_node
    if not knows_peaks(step, device, node=node):
        return None
    assert device.peak_flops and device.memory_bandwidth, "both are known"
    flops = sum(one.flops * (one.num_forward + one.num_backward) for one in step.matmuls)
    inside, outside = _least_seconds(step.collectives, step, device, node)
    return StepBound(
        compute_seconds=(flops + step.attention.least) / device.peak_flops / _LEAST_SHARE.get(step.dtype, 1),
        link_seconds=inside,
        network_seconds=outside,
        replicas_seconds=max(_least_seconds(step.behind, step, device, node)),
        optimizer_seconds=step.optimizer_bytes * step.optimizer_elements / device.memory_bandwidth,
        optimizer_bytes=step.optimizer_bytes,
    )


def _least_seconds(
    collectives: Iterable[Collective], step: StepWork, device: Device, node: int | None
) -> tuple[float, float]:
    """Seconds of a rank's links, and of its adapter."""
    inside = outside = 0.0
    for one in collectives:
        way = route(one, members_in_node(step.mesh, one.over, node))
        inside += one.count * way.least_link_bytes
        outside += one.count * way.least_nic_bytes
    return inside / (device.link_bandwidth or 1), outside / (device.nic_bandwidth or 1)
