"""What a plan needs of the machines that run it."""

from __future__ import annotations

from dataclasses import dataclass

from planc.estimate.checkpoint import checkpoint_bytes
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import (
    BuildModel,
    CompileModules,
    ExportHf,
    FullyShard,
    InitMesh,
    OpenLog,
    SaveCheckpoint,
)
from planc.inventory.schema import Inventory
from planc.source import Span
from planc.vocab import DType


@dataclass(frozen=True, slots=True)
class Saves:
    """What a run leaves on disk: bytes of one checkpoint, how many lie there at once, bytes of an export.

    `span` is where the plan asks for it.
    """

    num_bytes: int
    at_once: int
    export_bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class MeantFor:
    """The device that a plan is meant for. `span` is where the plan says so."""

    name: str
    memory_bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Needs:
    """A plan's demands, each with where the plan makes it.

    `backend` is as the plan writes it: auto, gloo or nccl. `dtypes` are those that it stores or computes in.
    `devices_per_node` and `device` are None where the plan leaves them open, `saves` where nothing is saved.
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
    """Where modules are compiled by a backend that calls the system's own compiler."""
    device: MeantFor | None = None
    trackers: tuple[str, ...] = ()
    """Whom rank 0 tells of the run."""


def trackers_of(graph: Graph) -> tuple[str, ...]:
    """The names of the trackers that a run tells."""
    return tuple(one.kind for op in graph.setup if isinstance(op, OpenLog) for one in op.trackers)


def needs_of(
    graph: Graph,
    inventory: Inventory,
    *,
    devices_per_node: int | None = None,
    device: MeantFor | None = None,
) -> Needs:
    """The needs of a graph that was compiled here, with its spans; the inventory must be of its model."""
    init = next(op for op in graph.setup if isinstance(op, InitMesh))
    build = next(op for op in graph.setup if isinstance(op, BuildModel))
    units = [op for op in graph.setup if isinstance(op, FullyShard)]
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
        compiler=next((op.span for op in graph.setup if _calls_compiler(op)), None),
        device=device,
        trackers=trackers_of(graph),
    )


def _calls_compiler(op: Op) -> bool:
    return isinstance(op, CompileModules) and op.backend == "inductor"


def _saves(graph: Graph, inventory: Inventory) -> Saves | None:
    if not graph.save:
        return None
    at_once = sum(_at_once(op, graph.num_steps) for op in graph.save if isinstance(op, SaveCheckpoint))
    exported = sum(op.dtype.size_bytes for op in graph.save if isinstance(op, ExportHf))
    return Saves(
        num_bytes=checkpoint_bytes(graph, inventory),
        at_once=at_once,
        export_bytes=exported * inventory.num_parameters,
        span=_span(graph.save[0]),
    )


def _at_once(op: SaveCheckpoint, num_steps: int) -> int:
    """How many checkpoints lie on disk at once: the new one is committed before the oldest goes."""
    every = num_steps // op.every_steps if op.every_steps else 0
    is_extra = op.at_end and (op.every_steps is None or num_steps % op.every_steps != 0)
    return min(op.keep_last + 1, every + is_extra)


def _span(op: Op) -> Span:
    assert op.span is not None, "only a loaded artifact has ops without a place"
    return op.span
