"""`grads.all_reduce`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class AllReduceGradients(Op):
    op: Literal["grads.all_reduce"] = "grads.all_reduce"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Sums every gradient over replicas without FSDP, once per step: one message per layer "
        "of `blocks` and dtype, and one per dtype for the rest."
    )
    over: tuple[MeshDim, ...]
    blocks: tuple[str, ...]

    def effects(self) -> Effects:
        synced = (Resource.SYNCED_GRADIENTS,)
        return Effects(reads=synced, writes=synced, communicates=self.over)

    def messages(self, parameters: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The parameters whose gradients are sent together, in the model's order."""
        found: dict[str, list[str]] = {}
        for name in parameters:
            block = next((block for block in self.blocks if name.startswith(f"{block}.")), "")
            layer = name.removeprefix(f"{block}.").partition(".")[0] if block else ""
            found.setdefault(f"{block}.{layer}", []).append(name)
        return tuple(tuple(names) for names in found.values())
