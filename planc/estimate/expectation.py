"""The expected time of a step, as an interval: each part of the work at the share of a peak that runs reach.

    matmul         FLOPs / (peak x matmul x d / (d + narrow)), d its smaller width; or its bytes / memory
    attention      executed FLOPs / (peak x attention)
    elementwise    the bytes in planc/estimate/traffic.py / memory
    host           kernels x launch; compute takes at least as long
    offloading     bytes of modules' inputs / host link, each way
    collective     call + steps of its ring x latency + max(links' bytes / links, adapter's bytes / network)

Copies to the host and back, FSDP's messages and a ring's overlap with the compute of forward or of backward:
the slower counts, and a share of the faster. Collectives of tensor parallelism, of other attentions and of
single numbers overlap with nothing. Last come sums over replicas without FSDP, and the optimizer.

The interval takes each coefficient to either end of its own, by itself, and adds the squares. Most of it is
that of `whole`, by which trainers and clusters differ that no fit has seen; a calibration leaves it out.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, sqrt

from planc.devices.hardware import Device
from planc.estimate.bound import knows_peaks, step_bound
from planc.estimate.calibration import Calibration
from planc.estimate.efficiency import Efficiencies, Efficiency, efficiencies_of
from planc.estimate.parts import SENDS
from planc.estimate.result import Collective, Kind
from planc.estimate.routes import members_of, route
from planc.estimate.step_work import Matmul, PipelineWork, StepWork
from planc.pipelining.orders import rank_of
from planc.pipelining.simulate import simulate
from planc.record import record
from planc.vocab import DType

_SHARE = {DType.FLOAT32: 1 / 15, DType.FLOAT64: 1 / 15}
"""The share of bfloat16's peak FLOP/s: planc leaves TensorFloat-32 off, as PyTorch does (A100 19.5 of 312
TFLOP/s)."""

PUBLISHED = "efficiencies of published runs; planc calibrate narrows them"
_CALIBRATED_SPREAD = 0.05
_COMPUTE = ("matmul", "attention", "memory")
_COMMUNICATION = ("links", "network")


@record
class StepExpectation:
    """The expected seconds of one step, with the fast and the slow end of their interval.

    The parts add up to `step_seconds`: `hidden_seconds` of communication overlap with compute, and are not in
    it. The bound's is the least time, which is another figure.
    """

    matmul_seconds: float
    attention_seconds: float
    elementwise_seconds: float
    host_seconds: float
    """Seconds that the host's launches take in addition to the device's work."""
    exposed_seconds: float
    """Communication that compute does not hide."""
    hidden_seconds: float
    replicas_seconds: float
    optimizer_seconds: float
    fast_seconds: float
    slow_seconds: float
    source: str
    bubble_seconds: float = 0.0
    """The time in which the rank of a pipeline with the most work waits for others."""

    @property
    def compute_seconds(self) -> float:
        return self.matmul_seconds + self.attention_seconds + self.elementwise_seconds + self.host_seconds

    def seconds_per_launch(self, step: StepWork) -> float:
        """The device's work for each kernel: slower launches than this leave the device waiting."""
        device = self.matmul_seconds + self.attention_seconds + self.elementwise_seconds
        return device / step.kernels if step.kernels else inf

    @property
    def step_seconds(self) -> float:
        alone = self.exposed_seconds + self.replicas_seconds + self.optimizer_seconds
        return self.compute_seconds + alone + self.bubble_seconds

    @property
    def limit(self) -> str:
        """The largest part."""
        parts = (
            (self.matmul_seconds, "matmuls"),
            (self.attention_seconds, "attention"),
            (self.elementwise_seconds, "elementwise"),
            (self.host_seconds, "the host"),
            (self.exposed_seconds + self.replicas_seconds, "communication"),
            (self.optimizer_seconds, "the optimizer"),
            (self.bubble_seconds, "the bubble"),
        )
        return max(parts)[1]


@record
class _Machine:
    """A device with one value for each efficiency."""

    device: Device
    node: int | None
    values: dict[str, float]

    def peaks(self, step: StepWork) -> tuple[float, float]:
        """FLOP/s in the step's dtype, and bytes a second of memory."""
        assert self.device.peak_flops and self.device.memory_bandwidth, "both are known"
        peak = self.device.peak_flops * _SHARE.get(step.dtype, 1)
        return peak, self.device.memory_bandwidth * self.values["memory"]

    def copy_seconds(self, step: StepWork) -> float:
        """The seconds in which forwards copy inputs of modules to the host, and backwards copy them back."""
        return step.offloaded_bytes / ((self.device.host_bandwidth or 1) * self.values["host_link"])

    def seconds_of(self, collective: Collective, step: StepWork) -> float:
        """All of equal collectives."""
        way = route(collective, members_of(collective, step.mesh, self.node))
        values = self.values
        latency = way.link_steps * values["link_step_seconds"]
        latency += way.nic_steps * values["network_step_seconds"]
        links = way.link_bytes / ((self.device.link_bandwidth or 1) * values["links"])
        network = way.nic_bytes / ((self.device.nic_bandwidth or 1) * values["network"])
        return collective.count * (values["call_seconds"] + latency + max(links, network))


def step_expectation(
    step: StepWork,
    device: Device,
    *,
    devices_per_node: int | None = None,
    calibration: Calibration | None = None,
    known: Efficiencies | None = None,
) -> StepExpectation | None:
    """The expectation on a device, by its efficiencies or by the `known` ones.

    None if a peak is unknown, or if the plan has work that is not modeled. Raises ValueError for
    another device's calibration.
    """
    if calibration is not None and calibration.device != device.name:
        raise ValueError(
            f"the calibration is for {calibration.device}, and the plan's device is {device.name}"
        )
    node = devices_per_node or device.devices_per_node
    if step.not_modeled or not knows_peaks(step, device, node=node):
        return None
    known = _calibrated(known or efficiencies_of(device.name), calibration)
    middle = _values(known)
    expected = _expected(step, _Machine(device, node, middle))
    fast, slow = _ends(step, device, node, known, expected.step_seconds)
    least = step_bound(step, device, devices_per_node=devices_per_node)
    assert least is not None, "its peaks are known"
    return replace(
        expected,
        fast_seconds=max(fast, min(least.step_seconds, expected.step_seconds)),
        slow_seconds=slow,
        source=f"calibrated by {calibration.source}" if calibration else PUBLISHED,
    )


def expected_step(step: StepWork, device: Device, known: Efficiencies) -> StepExpectation:
    """The expectation with these efficiencies, without its interval: for a search, or a fit."""
    return _expected(step, _Machine(device, device.devices_per_node, _values(known)))


def _values(known: Efficiencies) -> dict[str, float]:
    return {name: one.expected for name, one in _named(known)}


def _named(known: Efficiencies) -> tuple[tuple[str, Efficiency], ...]:
    return tuple((one.name, getattr(known, one.name)) for one in fields(known))


def _calibrated(known: Efficiencies, calibration: Calibration | None) -> Efficiencies:
    """The efficiencies times what a run measured, within a narrow interval."""
    if calibration is None:
        return known
    # A run on the same machine leaves nothing of what sets trainers and clusters apart.
    known = replace(known, whole=Efficiency(1.0, 1.0, 1.0, "planc calibrate"))
    scales = {
        **dict.fromkeys(_COMPUTE, calibration.compute_scale),
        **dict.fromkeys(_COMMUNICATION, calibration.communication_scale),
    }
    measured = {
        name: _measured(one, scale) for name, one in _named(known) if (scale := scales.get(name)) is not None
    }
    if (launch := calibration.launch_seconds) is not None:
        spread = _CALIBRATED_SPREAD * launch
        measured["kernel_seconds"] = Efficiency(launch + spread, launch, launch - spread, "planc calibrate")
    return replace(known, **measured)


def _measured(one: Efficiency, scale: float) -> Efficiency:
    value = min(1.0, one.expected * scale)
    spread = _CALIBRATED_SPREAD
    return Efficiency(value * (1 - spread), value, min(1.0, value * (1 + spread)), "planc calibrate")


def _ends(
    step: StepWork, device: Device, node: int | None, known: Efficiencies, expected: float
) -> tuple[float, float]:
    """The fast and the slow end of the interval."""
    middle = _values(known)
    fast = slow = 0.0
    for name, one in _named(known):
        for value in (one.low, one.high):
            values = {**middle, name: value}
            seconds = _expected(step, _Machine(device, node, values)).step_seconds / values["whole"]
            fast += min(0.0, seconds - expected) ** 2
            slow += max(0.0, seconds - expected) ** 2
    return expected - sqrt(fast), expected + sqrt(slow)


def _expected(step: StepWork, machine: _Machine) -> StepExpectation:
    if step.pipeline is not None:
        return _expected_pipeline(step.pipeline, machine)
    found, _ = _expected_rank(step, machine)
    return found


def _expected_rank(step: StepWork, machine: _Machine) -> tuple[StepExpectation, tuple[float, float]]:
    """Return the step of a rank that never waits for others, and seconds of its forwards and backwards."""
    values = machine.values
    peak, memory = machine.peaks(step)
    matmuls = _matmul_seconds(step, machine)
    attention = [flops / (peak * values["attention"]) for flops in step.attention.executed]
    elementwise = [moved / memory for moved in (step.traffic.forward, step.traffic.backward)]
    phases = [sum(parts) for parts in zip(matmuls, attention, elementwise, strict=True)]
    waiting = max(0.0, step.kernels * values["kernel_seconds"] - sum(phases))
    total = sum(phases) or 1.0
    phases = [one + waiting * one / total for one in phases]
    hidden, alone = _communication(step, machine)
    copied = machine.copy_seconds(step)
    hidden = (max(hidden[0], copied), max(hidden[1], copied))
    exposed = [
        alone / 2 + max(0.0, sent - compute) + values["exposed"] * min(sent, compute)
        for compute, sent in zip(phases, hidden, strict=True)
    ]
    expectation = StepExpectation(
        matmul_seconds=sum(matmuls),
        attention_seconds=sum(attention),
        elementwise_seconds=sum(elementwise),
        host_seconds=waiting,
        exposed_seconds=sum(exposed),
        hidden_seconds=sum(hidden) + alone - sum(exposed),
        replicas_seconds=sum(machine.seconds_of(one, step) for one in step.behind),
        optimizer_seconds=_optimizer_seconds(step, machine),
        fast_seconds=0.0,
        slow_seconds=0.0,
        source="",
    )
    return expectation, (phases[0] + exposed[0], phases[1] + exposed[1])


def _expected_pipeline(pipeline: PipelineWork, machine: _Machine) -> StepExpectation:
    """The step of the rank with the most work, and the bubble in which it waits for others."""
    times = [_expected_rank(stage, machine)[1] for stage in pipeline.stages]
    step = simulate(
        pipeline.orders,
        num_stages=len(times),
        forward=[forward / pipeline.num_micro_batches for forward, _ in times],
        backward=[backward / pipeline.num_micro_batches for _, backward in times],
        weights=[_deferred_seconds(one, machine) / pipeline.num_micro_batches for one in pipeline.stages],
        message=machine.seconds_of(pipeline.message, pipeline.stages[0]),
    )
    ranks = [_expected_rank(rank, machine)[0] for rank in pipeline.ranks]
    busy = [0.0] * len(ranks)
    for stage, seconds in enumerate(times):
        busy[rank_of(stage, num_ranks=len(ranks))] += sum(seconds)
    # Counts and norms are agreed on, gradients reduced and parameters updated outside of all orders.
    outside = max(rank.step_seconds - own for rank, own in zip(ranks, busy, strict=True))
    most = max(ranks, key=lambda rank: rank.step_seconds)
    return replace(most, bubble_seconds=max(0.0, step.seconds + outside - most.step_seconds))


def _matmul_seconds(step: StepWork, machine: _Machine) -> tuple[float, float]:
    """Seconds of matmuls in forwards, and in backwards."""
    seconds = [_seconds_of(one, step, machine) for one in step.matmuls]
    forward = sum(one.num_forward * each for one, each in zip(step.matmuls, seconds, strict=True))
    backward = sum(one.num_backward * each for one, each in zip(step.matmuls, seconds, strict=True))
    return forward, backward


def _optimizer_seconds(step: StepWork, machine: _Machine) -> float:
    """Seconds of what the optimizer moves, and of what it multiplies in its own dtype."""
    _, memory = machine.peaks(step)
    own = replace(step, dtype=step.optimizer_dtype)
    multiplied = sum(
        product.num_forward * _seconds_of(product, own, machine) for product in step.optimizer_matmuls
    )
    return step.optimizer_bytes * step.optimizer_elements / memory + multiplied


def _deferred_seconds(step: StepWork, machine: _Machine) -> float:
    """Seconds of those gradients of weights that are computed apart from backwards."""
    return sum(one.num_deferred * _seconds_of(one, step, machine) for one in step.matmuls)


def _seconds_of(one: Matmul, step: StepWork, machine: _Machine) -> float:
    width = min(one.inner, one.outer)
    share = machine.values["matmul"] * width / (width + machine.values["narrow_features"])
    peak, memory = machine.peaks(step)
    return max(one.flops / (peak * share), one.num_elements * step.dtype.size_bytes / memory)


def _communication(step: StepWork, machine: _Machine) -> tuple[tuple[float, float], float]:
    """Seconds of messages that can overlap with forward and with backward, and of those that can't."""
    forward = backward = alone = 0.0
    for collective in step.collectives:
        seconds = machine.seconds_of(collective, step)
        if step.defers and collective.cause == "fsdp.shard" and collective.kind is not Kind.ALL_GATHER:
            # Units are reduced after all gradients of weights.
            alone += seconds
            continue
        if collective.cause == "fsdp.shard":
            early = step.gathered_in_forward if collective.kind is Kind.ALL_GATHER else 0.0
        elif collective.cause == SENDS:
            # Their time is the simulation's.
            continue
        elif collective.cause == "grads.all_reduce":
            early = 0.0
        elif collective.kind is Kind.SEND:
            # A ring's backward sends keys and values, and their gradients.
            early = 1 / 3
        else:
            alone += seconds
            continue
        forward += early * seconds
        backward += (1 - early) * seconds
    return (forward, backward), alone
