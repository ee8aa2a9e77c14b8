"""The least time of a step: what no run of the plan can beat on its device.

Every part of the machine works at its peak, and all at the same time: compute, the links inside a node and
the network, of which the slowest counts. Collectives move the least bytes of any algorithm. Attention
computes the pairs of tokens that see each other, and no more. What follows overlaps with nothing: replicas
without FSDP sum their last gradients, and then the optimizer moves its bytes through memory. The stages
of a pipeline wait for each other as their orders have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planc.devices.hardware import Device
from planc.estimate.result import Collective
from planc.estimate.routes import members_of, route
from planc.estimate.step_work import PipelineWork, StepWork
from planc.pipelining.simulate import simulate
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
        """The resource that takes the most time until backward ends."""
        parts = (
            (self.compute_seconds, "compute"),
            (self.link_seconds, "links of a node"),
            (self.network_seconds, "network"),
        )
        return max(parts)[1]


def knows_peaks(step: StepWork, device: Device, *, node: int | None) -> bool:
    """Whether the device has every peak that the step's times need."""
    routes = [route(one, members_of(one, step.mesh, node)) for one in (*step.collectives, *step.behind)]
    needed = [device.peak_flops, device.memory_bandwidth]
    needed += [device.link_bandwidth] if any(one.link_bytes for one in routes) else []
    needed += [device.host_bandwidth] if step.offloaded_bytes else []
    needed += [device.nic_bandwidth] if any(one.nic_bytes for one in routes) else []
    return None not in needed


def step_bound(step: StepWork, device: Device, *, devices_per_node: int | None = None) -> StepBound | None:
    """The bound on a device; None if a peak of the device is unknown. Of a pipeline, its slowest rank's.

    `devices_per_node` is the plan's, or the device's own.
    """
    node = devices_per_node or device.devices_per_node
    if not knows_peaks(step, device, node=node):
        return None
    if step.pipeline is None:
        seconds = (step.matmul_flops + step.attention.least) / _flops_per_second(step, device)
        return _bound(step, device, node, compute_seconds=seconds)
    ends = _least_ends(step.pipeline, device, node)
    bounds = (
        _bound(rank, device, node, compute_seconds=end)
        for rank, end in zip(step.pipeline.ranks, ends, strict=True)
    )
    return max(bounds, key=lambda bound: bound.step_seconds)


def _bound(step: StepWork, device: Device, node: int | None, *, compute_seconds: float) -> StepBound:
    """The bound of one rank, whose forwards and backwards end after `compute_seconds` at the earliest."""
    inside, outside = _least_seconds(step.collectives, step, device, node)
    assert device.memory_bandwidth, "it is known"
    flops = sum(product.flops * product.num_forward for product in step.optimizer_matmuls)
    return StepBound(
        compute_seconds=compute_seconds,
        link_seconds=inside,
        network_seconds=outside,
        replicas_seconds=max(_least_seconds(step.behind, step, device, node)),
        optimizer_seconds=step.optimizer_bytes * step.optimizer_elements / device.memory_bandwidth
        + flops / _flops_per_second(replace(step, dtype=step.optimizer_dtype), device),
        optimizer_bytes=step.optimizer_bytes,
    )


def _flops_per_second(step: StepWork, device: Device) -> float:
    assert device.peak_flops, "it is known"
    return device.peak_flops * _LEAST_SHARE.get(step.dtype, 1)


def _least_ends(pipeline: PipelineWork, device: Device, node: int | None) -> tuple[float, ...]:
    """When each pp rank's last action ends, if all compute at the peak: any delay of one delays no other
    less."""
    forward, backward, weights = [], [], []
    for stage in pipeline.stages:
        scale = 1 / _flops_per_second(stage, device) / pipeline.num_micro_batches
        ahead = sum(one.flops * one.num_forward for one in stage.matmuls) + stage.attention.least_forward
        forward.append(ahead * scale)
        backward.append((stage.matmul_flops + stage.attention.least - ahead) * scale)
        weights.append(sum(one.flops * one.num_deferred for one in stage.matmuls) * scale)
    simulation = simulate(
        pipeline.orders,
        num_stages=len(pipeline.stages),
        forward=forward,
        backward=backward,
        weights=weights,
        message=max(_least_seconds((pipeline.message,), pipeline.stages[0], device, node)),
    )
    return tuple(ends[-1] for ends in simulation.ends)


def _least_seconds(
    collectives: Iterable[Collective], step: StepWork, device: Device, node: int | None
) -> tuple[float, float]:
    """Seconds of a rank's links, and of its adapter."""
    inside = outside = 0.0
    for one in collectives:
        way = route(one, members_of(one, step.mesh, node))
        inside += one.count * way.least_link_bytes
        outside += one.count * way.least_nic_bytes
    return inside / (device.link_bandwidth or 1), outside / (device.nic_bandwidth or 1)
