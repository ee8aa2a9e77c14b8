"""A plan's requirements for its machines, and whether its exports can be pushed from here. Sends nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planc.diagnostics import Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.estimate.states import saved
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import PushExport
from planc.inventory.schema import Inventory
from planc.runtime.fetch import is_offline
from planc.source import SourceFile, Span
from planc.vocab import DType


@dataclass(frozen=True, slots=True)
class Saves:
    """The disk space of a run: bytes of one checkpoint, how many exist at once, bytes of an export.

    `span` is the place in the plan.
    """

    num_bytes: int
    at_once: int
    export_bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class MeantFor:
    """The device in a plan's `hardware` block. `span` is the place in the plan."""

    name: str
    memory_bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Needs:
    """A plan's requirements, each with its place in the plan.

    `backend` is auto, gloo or nccl, as in the plan. `dtypes` are its storage and compute dtypes.
    `devices_per_node` and `device` are None if the plan does not set them, `saves` if it saves nothing.
    """

    world_size: int
    backend: str
    dtypes: tuple[DType, ...]
    has_fsdp: bool
    mesh: Span
    model: Span
    devices_per_node: int | None = None
    saves: Saves | None = None
    compiler: Span | None = None
    """The place in the plan that compiles modules with a backend that needs a system compiler."""
    device: MeantFor | None = None
    trackers: tuple[str, ...] = ()
    """Trackers that rank 0 logs to."""
    pushes: tuple[ops.PushExport, ...] = ()
    """Pushes of rank 0 to the Hub."""


def trackers_of(graph: Graph) -> tuple[str, ...]:
    """The names of the trackers that a run logs to."""
    return tuple(tracker.kind for op in graph.setup if isinstance(op, ops.OpenLog) for tracker in op.trackers)


def needs_of(
    graph: Graph,
    inventory: Inventory,
    *,
    devices_per_node: int | None = None,
    device: MeantFor | None = None,
) -> Needs:
    """The needs of a graph compiled here, which has spans; the inventory must be of its model."""
    init = next(op for op in graph.setup if isinstance(op, ops.InitMesh))
    build = next(op for op in graph.setup if isinstance(op, ops.BuildModel))
    units = [op for op in graph.setup if isinstance(op, ops.FullyShard)]
    compiled = (op for op in graph.setup if isinstance(op, ops.CompileModules))
    dtypes = {build.dtype: None}
    for op in units:
        dtypes |= dict.fromkeys(one for one in (op.param_dtype, op.reduce_dtype) if one is not None)
    return Needs(
        world_size=graph.world_size,
        backend=init.backend,
        dtypes=tuple(dtypes),
        has_fsdp=bool(units),
        mesh=_span(init),
        model=_span(build),
        devices_per_node=devices_per_node,
        saves=_saves(graph, inventory),
        compiler=next((op.span for op in compiled if op.backend == "inductor"), None),
        device=device,
        trackers=trackers_of(graph),
        pushes=pushes_of(graph),
    )


def _saves(graph: Graph, inventory: Inventory) -> Saves | None:
    if not graph.save:
        return None
    checkpoints = saved(graph, inventory)
    exported = sum(op.dtype.size_bytes for op in graph.save if isinstance(op, ops.ExportHf))
    return Saves(
        num_bytes=checkpoints.num_bytes,
        at_once=checkpoints.at_once,
        export_bytes=exported * inventory.num_parameters,
        span=_span(graph.save[0]),
    )


def _span(op: Op) -> Span:
    assert op.span is not None, "only ops of a loaded artifact have no span"
    return op.span


def pushes_of(graph: Graph) -> tuple[PushExport, ...]:
    """The pushes of a run."""
    return tuple(op for op in graph.save if isinstance(op, PushExport))


def push_checks(
    pushes: Sequence[PushExport], environment: Mapping[str, str], *, has_token: bool
) -> Iterator[Check]:
    """One check of all pushes of a plan, if it has any."""
    if not pushes:
        return
    text = help = ""
    if not has_token:
        text, help = "no token for the Hub is set", "run `hf auth login`, or set HF_TOKEN"
    if is_offline(environment):
        text, help = "HF_HUB_OFFLINE forbids requests to the Hub", "unset HF_HUB_OFFLINE, or remove `push`"
    observed = SourceFile("push", ", ".join(op.target for op in pushes))
    spans = (op.span for op in pushes[:1] if op.span is not None)
    labels = tuple(Label(span, "the plan pushes an export") for span in spans)
    problem = codes.NO_PUSH.at(observed.whole(), text, secondary=labels, help=help)
    required, reason = "a token, and access to the Hub", "the plan pushes an export"
    yield Check(Section.VARIABLES, observed, required, reason, (problem,) if text else ())
