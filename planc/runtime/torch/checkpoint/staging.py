"""Copies in host memory of what a rank writes, made while training waits and reused by later saves.

DCP plans a save over all ranks: if several ranks hold a tensor, one of them writes each chunk. A rank copies
only its own chunks, so all ranks together hold one checkpoint, however many replicas train. The plan follows
from shapes and layouts, which a run does not change: it is made at the first save, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from planc.runtime.torch.agreement.texts import rank
from planc.runtime.torch.checkpoint.saving import save_with
from planc.runtime.torch.checkpoint.writer import Contents, SafetensorsWriter, TensorSavePlanner
from planc.runtime.torch.parallel.packing import Packing


@dataclass(frozen=True, slots=True)
class Planned:
    """The chunks that this rank writes, and on rank 0 the metadata of all ranks' chunks."""

    plan: SavePlan
    metadata: Metadata | None
    planner: TensorSavePlanner
    """Finds a chunk's tensor in `tensors`, which is set again at each save."""


def plan_save(
    tensors: Mapping[str, Tensor], *, packings: Mapping[str, Packing], group: dist.ProcessGroup | None
) -> Planned:
    """Decide which rank writes what. Every rank must call it; nothing is written.

    All ranks raise the CheckpointError of any tensor that can't be saved.
    """
    planner = TensorSavePlanner(packings)
    kept = _KeptPlan()
    save_with(kept, tensors=tensors, planner=planner, group=group)
    assert kept.plan is not None, "DCP asks every rank to write its plan"
    return Planned(kept.plan, kept.metadata, planner)


class Stage:
    """The copies that one rank writes; `copy` replaces their values in place."""

    def __init__(self, planned: Planned, *, device: torch.device) -> None:
        self.planned = planned
        self._device = device
        self._copies: dict[MetadataIndex, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """The size of all copies, once they are made."""
        return sum(copy.nbytes for copy in self._copies.values())

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy this rank's chunks as they are now. On return the tensors may change."""
        self.planned.planner.set_up_planner(dict(tensors))
        is_cuda = self._device.type == "cuda"
        for item in self.planned.plan.items:
            source = cast(Tensor, self.planned.planner.resolve_data(item)).detach()
            if item.index not in self._copies:
                # Pinned, because otherwise a device can't copy asynchronously.
                empty = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=is_cuda)
                self._copies[item.index] = empty
            self._copies[item.index].copy_(source, non_blocking=is_cuda)
        if is_cuda:
            torch.cuda.current_stream(self._device).synchronize()

    def copied(self, index: MetadataIndex) -> Tensor:
        return self._copies[index]


class StagedPlanner(TensorSavePlanner):
    """Lets DCP write copies, by an existing plan."""

    def __init__(self, stage: Stage) -> None:
        super().__init__({})
        self._stage = stage

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        pass

    def create_local_plan(self) -> SavePlan:
        return self._stage.planned.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        assert self._stage.planned.metadata is not None, "DCP asks the coordinator, which planned"
        return all_plans, self._stage.planned.metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._stage.copied(write_item.index)


class _KeptPlan(SafetensorsWriter):
    """Keeps the plan of what to write, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(Path(), rank=rank(), commit=_nothing)
        self.plan: SavePlan | None = None
        self.metadata: Metadata | None = None

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.plan = plan
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.metadata = metadata


def _nothing(contents: Contents) -> None:
    raise AssertionError("nothing is committed while a save is planned")
