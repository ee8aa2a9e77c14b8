"""The verifier finds what is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.api import check_source
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op, Stage
from planc.graph.verify import verify
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.plans import FULL, PLANS, canonical_plans, checked


def _sound() -> Graph:
    graph = check_source(SourceFile("full.plan", FULL), base=PLANS).graph
    assert graph is not None
    return graph


def _edit(sequence: str, change: Callable[[list[Op]], list[Op]]) -> Callable[[Graph], Graph]:
    """A graph with one of its sequences changed."""

    def edit(graph: Graph) -> Graph:
        changed: dict[str, Any] = {sequence: tuple(change(list(getattr(graph, sequence))))}
        return replace(graph, **changed)

    return edit


def _without(sequence: str, kind: type[Op]) -> Callable[[Graph], Graph]:
    return _edit(sequence, lambda found: [op for op in found if not isinstance(op, kind)])


def _twice(sequence: str, kind: type[Op]) -> Callable[[Graph], Graph]:
    return _edit(sequence, lambda found: [copy for op in found for copy in [op] * (1 + isinstance(op, kind))])


def _last(sequence: str, kind: type[Op]) -> Callable[[Graph], Graph]:
    """Ops of a kind moved to the end."""
    return _edit(sequence, lambda found: sorted(found, key=lambda op: isinstance(op, kind)))


def _first(sequence: str, is_first: Callable[[Op], bool]) -> Callable[[Graph], Graph]:
    return _edit(sequence, lambda found: sorted(found, key=lambda op: not is_first(op)))


def _body(change: Callable[[list[Op]], list[Op]]) -> Callable[[Graph], Graph]:
    def body(op: ops.Accumulate) -> Any:
        return tuple(change(list(op.body)))

    def edit(step: list[Op]) -> list[Op]:
        return [replace(op, body=body(op)) if isinstance(op, ops.Accumulate) else op for op in step]

    return _edit("step", edit)


def _each(sequence: str, kind: type[Op], **fields: Any) -> Callable[[Graph], Graph]:
    return _edit(
        sequence, lambda found: [replace(op, **fields) if isinstance(op, kind) else op for op in found]
    )


def _summed_again(found: list[Op]) -> list[Op]:
    """After FSDP, once more over its ranks."""
    place = [isinstance(op, ops.SyncGradients) for op in found].index(True)
    again = ops.AllReduceGradients(over=(MeshDim.DP_SHARD,), blocks=(), bucket_bytes=1, span=None)
    return [*found[:place], again, *found[place:]]


def _with_mesh(mesh: tuple[tuple[MeshDim, int], ...]) -> Callable[[Graph], Graph]:
    """Another mesh, of which mesh.init knows."""

    def change(graph: Graph) -> Graph:
        return replace(_each("setup", ops.InitMesh, sizes=mesh)(graph), mesh=mesh)

    return change


ONE_EACH = tuple((mesh_dim, 1) for mesh_dim in MeshDim)

PLANTED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "a save nobody asks after": (
        _each("save", ops.SaveCheckpoint, mode="async", when_busy="wait"),
        "has checkpoint.settle 0 times for 1 asynchronous saves",
    ),
    "a save that may be skipped and is waited for": (
        _each("save", ops.SaveCheckpoint, when_busy="skip"),
        "when_busy is only for an asynchronous save",
    ),
    "ranks that hear of the end for themselves": (
        _each("step", ops.ReduceMetrics, agree_over=()),
        "ranks along tp do not agree on when to stop",
    ),
    "no mesh": (_without("setup", ops.InitMesh), "mesh.init must be first, and only once"),
    "mesh last": (_last("setup", ops.InitMesh), "mesh.init must be first, and only once"),
    "two meshes": (_twice("setup", ops.InitMesh), "mesh.init must be first, and only once"),
    "another mesh": (_each("setup", ops.InitMesh, sizes=ONE_EACH), "its sizes differ from the graph's"),
    "mesh without tp": (_with_mesh(ONE_EACH[:-1]), "communicates over tp, which is not in the mesh"),
    "mesh inside out": (_with_mesh(ONE_EACH[::-1]), "must name every dim once, outermost first"),
    "empty mesh dim": (_with_mesh((*ONE_EACH[:-1], (MeshDim.TP, 0))), "must have at least one rank"),
    "tp after fsdp": (_last("setup", ops.ShardTensorParallel), "stage TENSOR_PARALLEL must not follow"),
    "fsdp after the weights": (_last("setup", ops.FullyShard), "stage FULLY_SHARD must not follow"),
    "optimizer before sharding": (
        _first("setup", lambda op: isinstance(op, ops.InitMesh | ops.BuildOptimizer)),
        "stage BUILD must not follow OPTIMIZER",
    ),
    "step op in setup": (_edit("setup", lambda found: [*found, ops.StepOptimizer()]), "is not a setup op"),
    "setup op in step": (
        _edit("step", lambda found: [*found, ops.MaterialiseWeights()]),
        "does not belong to stage STEP",
    ),
    "step op in save": (
        _edit("save", lambda found: [*found, ops.StepOptimizer()]),
        "does not belong to stage SAVE",
    ),
    "no weights": (_without("setup", ops.InitWeights), "reads weights before anything writes it"),
    "no memory": (
        _without("setup", ops.MaterialiseWeights),
        "needs weights.materialise once and has it 0 times",
    ),
    "averages that no step updates": (
        _edit("setup", lambda found: sorted([*found, ops.BuildAverages()], key=lambda op: op.stage)),
        "has ema.build 1 times, and ema.update 0 times",
    ),
    "no data": (_without("setup", ops.OpenData), "reads data before anything writes it"),
    "no batch": (_without("step", ops.NextBatch), "reads batch before anything writes it"),
    "clip after the step": (
        _last("step", ops.ClipGradients),
        "reads clipped_gradients before anything writes it",
    ),
    "no clip": (_without("step", ops.ClipGradients), "reads clipped_gradients before anything writes it"),
    "no sync": (_without("step", ops.SyncGradients), "reads synced_gradients before anything writes it"),
    "no step": (_without("step", ops.StepOptimizer), "needs optimizer.step once and has it 0 times"),
    "two steps": (_twice("step", ops.StepOptimizer), "needs optimizer.step once and has it 2 times"),
    "two batches": (_twice("step", ops.NextBatch), "needs batch.next once and has it 2 times"),
    "no loop": (_without("step", ops.Accumulate), "needs accumulate once and has it 0 times"),
    "no backward": (
        _body(lambda body: [op for op in body if not isinstance(op, ops.Backward)]),
        "reads gradients before anything writes it",
    ),
    "backward before loss": (_body(lambda body: body[::-1]), "reads loss before anything writes it"),
    "root unit first": (
        _first("setup", lambda op: op.stage < Stage.FULLY_SHARD or getattr(op, "groups", ()) == (("",),)),
        "follows a unit that contains it",
    ),
    "no such unit": (
        _edit(
            "setup", lambda found: [*found[:-1], ops.PrefetchUnits(ahead=2, units=("nothing",)), found[-1]]
        ),
        "`nothing` is not in a unit",
    ),
    "gradients summed nowhere": (
        _without("setup", ops.FullyShard),
        "does not sum gradients over dp_shard once",
    ),
    "gradients summed twice": (_edit("step", _summed_again), "does not sum gradients over dp_shard once"),
    "gradients of the root summed nowhere": (
        _edit("setup", lambda found: [op for op in found if getattr(op, "groups", ()) != (("",),)]),
        "does not sum gradients over dp_shard once",
    ),
    "batch does not close": (_each("setup", ops.OpenData, global_batch=15), "is not the global batch 15"),
    "accumulation does not close": (_each("step", ops.Accumulate, times=3), "is not the global batch 16"),
}


@pytest.mark.parametrize(("plant", "text"), PLANTED.values(), ids=PLANTED)
def test_planted_violation_is_found(plant: Callable[[Graph], Graph], text: str) -> None:
    violations = verify(plant(_sound()))
    assert any(text in str(violation) for violation in violations), violations


@pytest.mark.parametrize("behind", [ops.SyncGradients, ops.ClipGradients])
def test_gradients_are_summed_over_replicas_before_they_are_read(behind: type[Op]) -> None:
    graph = _of_replicas()
    (summing,) = (op for op in graph.step if isinstance(op, ops.AllReduceGradients))
    rest = [op for op in graph.step if op is not summing]
    place = [isinstance(op, behind) for op in rest].index(True) + 1
    violations = verify(_edit("step", lambda _: [*rest[:place], summing, *rest[place:]])(graph))
    assert [str(one) for one in violations] == [
        "grads.all_reduce: writes gradients after grads.sync has read it"
    ]


def test_all_replicas_are_summed_by_one_op() -> None:
    graph = _of_replicas()
    (summing,) = (op for op in graph.step if isinstance(op, ops.AllReduceGradients))
    other = replace(summing, over=(MeshDim.TP,))
    violations = verify(_edit("step", lambda step: [*step[:2], other, *step[2:]])(graph))
    assert [str(one) for one in violations] == ["graph: has grads.all_reduce 2 times"]


def _of_replicas() -> Graph:
    graph = checked(PLANS / "launch-dp4.plan").graph
    assert graph is not None and verify(graph) == ()
    return graph


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_canonical_plans_have_sound_graphs(path: Path) -> None:
    graph = checked(path).graph
    assert graph is not None
    assert verify(graph) == ()


def test_every_op_is_registered_once_under_its_own_name() -> None:
    names = [op.__dataclass_fields__["op"].default for op in ops.OPS]
    assert len(set(names)) == len(names)
    bases = {base for op in ops.OPS for base in op.__mro__[1:] if issubclass(base, Op)}
    declared = {op.__name__ for base in bases for op in base.__subclasses__()}
    assert {op.__name__ for op in ops.OPS} == declared - {
        base.__name__ for base in bases if base not in ops.OPS
    }
