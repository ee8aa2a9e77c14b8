"""A lower bound of a step's time, from the peaks of the machine's parts.

Compute, the links inside a node and the network work at the same time at best, so the slowest of the three
counts. The work after them overlaps with nothing: replicas without FSDP sum their gradients, and then the
optimizer moves 28 bytes an element through memory if it is AdamW (it reads and writes parameter and both
moments, and reads the gradient, in float32). Real steps take longer: what does not overlap, latencies,
kernels below the peak. A calibration narrows that gap with the utilization of a run.
"""

from __future__ import annotations

from collections.abc import Iterable

from planc.devices.hardware import Device
from planc.estimate.calibration import Calibration
from planc.estimate.result import Collective, Estimate
from planc.graph.graph import Graph
from planc.graph.ops import AllReduceGradients, BuildOptimizer
from planc.record import record
from planc.vocab import MeshDim

_ELEMENT_BYTES = 4

UNCALIBRATED = "uncalibrated roofline: a lower bound, from the device's peaks only"


@record
class Roofline:
    """Seconds of one step by cause, and the source of the efficiencies."""

    compute_seconds: float
    link_seconds: float
    network_seconds: float
    replicas_seconds: float
    """The time of gradients that are reduced after backward."""
    optimizer_seconds: float
    optimizer_bytes: int
    """The bytes that the optimizer moves for each element."""
    source: str

    @property
    def step_seconds(self) -> float:
        slowest = max(self.compute_seconds, self.link_seconds, self.network_seconds)
        return slowest + self.replicas_seconds + self.optimizer_seconds

    @property
    def bound(self) -> str:
        """The time of a step before gradients are reduced over replicas."""
        parts = (
            (self.compute_seconds, "compute"),
            (self.link_seconds, "links of a node"),
            (self.network_seconds, "network"),
        )
        return max(parts)[1]


def roofline(
    found: Estimate,
    graph: Graph,
    device: Device,
    *,
    devices_per_node: int | None = None,
    calibration: Calibration | None = None,
) -> Roofline | None:
    """The bound for a graph on a device; None if a peak of the device is unknown.

    `devices_per_node` is the plan's, or the device's own. Raises ValueError for another device's calibration.
    """
    if calibration is not None and calibration.device != device.name:
        raise ValueError(
            f"the calibration is for {calibration.device}, and the plan's device is {device.name}"
        )
    node = devices_per_node or device.devices_per_node
    behind = {op.name for op in graph.step if isinstance(op, AllReduceGradients)}
    inside, outside = _sent((one for one in found.collectives if one.cause not in behind), graph, node)
    last_inside, last_outside = _sent((one for one in found.collectives if one.cause in behind), graph, node)
    needed = [device.peak_flops, device.memory_bandwidth]
    needed += [device.link_bandwidth] if inside or last_inside else []
    needed += [device.nic_bandwidth] if outside or last_outside else []
    if None in needed:
        return None
    gemm = (calibration and calibration.gemm_efficiency) or 1.0
    bus = (calibration and calibration.bus_efficiency) or 1.0
    assert device.peak_flops and device.memory_bandwidth, "both are known"
    link, network = (device.link_bandwidth or 1) * bus, (device.nic_bandwidth or 1) * bus
    moved = _optimizer_bytes(graph)
    return Roofline(
        compute_seconds=found.flops.executed_per_rank / device.peak_flops / gemm,
        link_seconds=inside / link,
        network_seconds=outside / network,
        replicas_seconds=last_inside / link + last_outside / network,
        optimizer_seconds=moved * found.num_local_parameters / device.memory_bandwidth,
        optimizer_bytes=moved,
        source=f"calibrated by {calibration.source}" if calibration else UNCALIBRATED,
    )


def _optimizer_bytes(graph: Graph) -> int:
    """Per element, the gradient is read, and the parameter and its optimizer state are read and written."""
    (op,) = (op for op in graph.setup if isinstance(op, BuildOptimizer))
    return _ELEMENT_BYTES * (1 + 2 * (1 + len(op.state_names)))


def _sent(collectives: Iterable[Collective], graph: Graph, node: int | None) -> tuple[int, int]:
    """Bytes that a rank sends in a step within its node, and over the network."""
    sent = {True: 0, False: 0}
    for one in collectives:
        sent[_is_inside(one, graph, node)] += one.sent_bytes
    return sent[True], sent[False]


def _is_inside(one: Collective, graph: Graph, node: int | None) -> bool:
    """Whether all ranks of a group are on one node: neighbors of rank 0, with ranks numbered by node."""
    if node is None:
        return True
    return _extent(graph, one.over) <= node


def _extent(graph: Graph, over: tuple[MeshDim, ...]) -> int:
    """The distance between the group's first rank and its last, plus one."""
    stride, last = 1, 0
    for mesh_dim, size in reversed(graph.mesh):
        last += stride * (size - 1) if mesh_dim in over else 0
        stride *= size
    return last + 1


def calibrate(bound: Roofline, *, seconds: float, machine: str, device: Device, date: str) -> Calibration:
    """The utilization of a run with `seconds` per step: the efficiency of the resource that limits it.

    The other stays unmeasured: a run that computes all the time does not show how fast it could send.
    Raises ValueError for a run that was faster than the device's peaks allow.
    """
    communication = max(bound.link_seconds, bound.network_seconds)
    is_computing = bound.compute_seconds >= communication
    if is_computing:
        needed, rest = bound.compute_seconds, seconds - bound.replicas_seconds - bound.optimizer_seconds
    else:
        needed, rest = communication + bound.replicas_seconds, seconds - bound.optimizer_seconds
    if rest < needed:
        raise ValueError(
            f"a step of {seconds:.4g} s is faster than {device.name} allows, {bound.step_seconds:.4g} s: "
            "check that the run had this device and this plan"
        )
    return Calibration(
        machine=machine,
        device=device.name,
        date=date,
        gemm_efficiency=needed / rest if is_computing else None,
        bus_efficiency=None if is_computing else needed / rest,
    )
