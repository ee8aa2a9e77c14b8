"""Ops between the backward pass and the optimizer: reductions, the norm, and the guard."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, layout, numerics, output
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SyncGradients(Op):
    op: Literal["grads.sync"] = "grads.sync"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = (
        "Reduces the remaining partial gradients in one message, to their parameters' placements."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.GRADIENTS,), writes=(Resource.SYNCED_GRADIENTS,))
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class AllReduceGradients(Op):
    op: Literal["grads.all_reduce"] = "grads.all_reduce"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.BACKWARD
    summary: ClassVar[str] = (
        "Waits for the sums of gradients over replicas without FSDP. The last micro step's backward starts "
        "each sum once its gradients are there: one message per dtype for a bucket of layers of `blocks`, "
        "which is full from `bucket_bytes` on. Parameters between blocks count as a layer."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.GRADIENTS, Resource.REPLICA_SUMS), writes=(Resource.GRADIENTS,)
    )
    over: Annotated[tuple[MeshDim, ...], layout("mesh.dp_replicate", "gradients summed over")]
    blocks: Annotated[tuple[str, ...], DERIVED]
    bucket_bytes: Annotated[int, DERIVED]

    def messages(self, parameters: Iterable[tuple[str, Hashable, int]]) -> tuple[tuple[str, ...], ...]:
        """The parameters whose gradients are sent together, in the order of sending.

        `parameters` are (name, dtype, bytes before sharding) in the model's order. Backward computes their
        gradients from the last to the first.
        """
        full: list[tuple[str, ...]] = []
        bucket: dict[Hashable, list[str]] = {}
        bucket_bytes = 0
        for _, layer in groupby(reversed(tuple(parameters)), key=lambda one: self._layer_of(one[0])):
            for name, dtype, num_bytes in layer:
                bucket.setdefault(dtype, []).append(name)
                bucket_bytes += num_bytes
            if bucket_bytes >= self.bucket_bytes:
                full += map(tuple, bucket.values())
                bucket, bucket_bytes = {}, 0
        return (*full, *map(tuple, bucket.values()))

    def _layer_of(self, parameter: str) -> str:
        """`model.layers.0` of all parameters in it; empty outside of blocks."""
        block = next((block for block in self.blocks if parameter.startswith(f"{block}.")), None)
        if block is None:
            return ""
        return f"{block}.{parameter.removeprefix(f'{block}.').partition('.')[0]}"


@record(kw_only=True)
class SumTies(Op):
    op: Literal["grads.sum_ties"] = "grads.sum_ties"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = (
        "Sums the gradients of each weight that the first and the last stage of a pipeline both have, over "
        "these two: the copies stay equal."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.PIPELINE, Resource.SYNCED_GRADIENTS), writes=(Resource.SYNCED_GRADIENTS,)
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class ClipGradients(Op):
    op: Literal["grads.clip"] = "grads.clip"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = (
        "Computes the global gradient norm, each distinct element once. The optimizer's step scales the "
        "gradients to a norm of at most `max_norm`."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.SYNCED_GRADIENTS),
        finds=(Resource.PIPELINE,),
        writes=(Resource.CLIPPED_GRADIENTS, Resource.NORM),
    )
    max_norm: Annotated[float | None, numerics("optimizer.clip_grad_norm")]
    """None to compute the norm without clipping."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class NonfiniteGuard:
    """The action for a step with a NaN or inf loss or gradient; `at_most` None stops the run at once."""

    at_most: int | None

    def __str__(self) -> str:
        return _action(self.at_most)


@record(kw_only=True)
class SpikeGuard:
    """The action for a step whose loss is a spike compared with the `window` losses before it."""

    deviations: float
    window: int
    at_most: int | None

    def __str__(self) -> str:
        return f"{_action(self.at_most)} above {self.deviations:g} deviations of {self.window} steps"


def _action(at_most: int | None) -> str:
    return "stop" if at_most is None else f"skip at most {at_most} in a row"


@record(kw_only=True)
class GuardStep(Op):
    op: Literal["step.guard"] = "step.guard"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Checks the loss and the gradient norm; a bad step is skipped or ends the run."
    touches: ClassVar[Effects] = Effects(
        reads=(
            Resource.MESH,
            Resource.BATCH,
            Resource.TOKENS,
            Resource.STEP_LOSS,
            Resource.NORM,
            Resource.CLIPPED_GRADIENTS,
            Resource.METRICS,
            Resource.HISTORY,
        ),
        finds=(Resource.PIPELINE,),
        writes=(Resource.CLIPPED_GRADIENTS, Resource.VERDICT, Resource.HISTORY),
    )
    nonfinite: Annotated[NonfiniteGuard, output("guard.nonfinite")]
    loss_spike: Annotated[SpikeGuard | None, output("guard.loss_spike")]
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dims whose ranks each compute the whole loss, which could differ in its last bits."""
