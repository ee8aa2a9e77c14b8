"""`grads.all_reduce`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class AllReduceGradients(Op):
    op: Literal["grads.all_reduce"] = "grads.all_reduce"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Waits for the sums of gradients over replicas without FSDP. The last micro step's backward starts "
        "each sum once its gradients are there: one message per dtype for a bucket of layers of `blocks`, "
        "which is full from `bucket_bytes` on. Parameters between blocks count as a layer."
    )
    over: tuple[MeshDim, ...]
    blocks: tuple[str, ...]
    bucket_bytes: int

    def effects(self) -> Effects:
        summed = (Resource.GRADIENTS,)
        return Effects(reads=summed, writes=summed, communicates=self.over)

    def messages(self, parameters: Iterable[tuple[str, Hashable, int]]) -> tuple[tuple[str, ...], ...]:
        """The parameters whose gradients are sent together, in the order of sending.

        `parameters` are (name, dtype, bytes before sharding) in the model's order. Backward computes their
        gradients from the last to the first.
        """
        found: list[tuple[str, ...]] = []
        bucket: dict[Hashable, list[str]] = {}
        bucket_bytes = 0
        for _, layer in groupby(reversed(tuple(parameters)), key=lambda one: self._layer_of(one[0])):
            for name, dtype, num_bytes in layer:
                bucket.setdefault(dtype, []).append(name)
                bucket_bytes += num_bytes
            if bucket_bytes >= self.bucket_bytes:
                found += map(tuple, bucket.values())
                bucket, bucket_bytes = {}, 0
        return (*found, *map(tuple, bucket.values()))

    def _layer_of(self, parameter: str) -> str:
        """`model.layers.0` of all parameters in it; empty outside of blocks."""
        block = next((block for block in self.blocks if parameter.startswith(f"{block}.")), None)
        if block is None:
            return ""
        return f"{block}.{parameter.removeprefix(f'{block}.').partition('.')[0]}"
