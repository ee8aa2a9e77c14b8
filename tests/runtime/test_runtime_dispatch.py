"""Handlers are what their ops declare, and the backend passes and stores records by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from planc.graph.op import GIVEN, Op, Resource
from planc.graph.ops import OPS, Accumulate, ClipGradients, ComputeLoss, StepSchedule, SyncGradients
from planc.runtime.torch.dispatch import RECORDS, State, bind
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.handlers import HANDLERS
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import (
    ClippedGradients,
    Gradients,
    LocalBatch,
    Logits,
    Loss,
    Norm,
    SyncedGradients,
    TokenCount,
    Verdict,
)
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.step_loss import StepLoss


@pytest.mark.parametrize("kind", [op for op in OPS if op is not Accumulate])
def test_a_handler_reads_and_writes_what_its_op_declares(kind: type[Op]) -> None:
    effects, call = kind.touches, bind(kind, HANDLERS[kind])
    resources = {record: resource for resource, record in RECORDS.items()}
    read = {resources[record] for record in call.takes if record in resources}
    assert read == {*effects.reads, *effects.finds}
    written = {resources[record] for record in call.gives}
    assert written <= {*effects.writes} <= written | read


def test_every_resource_has_a_record_and_an_op_that_writes_it() -> None:
    written = {one for op in OPS if op is not Accumulate for one in op.touches.writes}
    assert written | GIVEN == set(RECORDS) == set(Resource)


def undeclared_read(run: Run, op: SyncGradients, gradients: Gradients, norm: Norm) -> SyncedGradients:
    raise NotImplementedError


def undeclared_write(run: Run, op: SyncGradients, gradients: Gradients) -> tuple[SyncedGradients, Norm]:
    raise NotImplementedError


def left_out(run: Run, op: SyncGradients) -> SyncedGradients:
    raise NotImplementedError


def not_written(run: Run, op: SyncGradients, gradients: Gradients) -> None:
    raise NotImplementedError


def sure_of_a_pipeline(
    run: Run, op: ClipGradients, mesh: Mesh, gradients: SyncedGradients, pipeline: Pipeline
) -> tuple[ClippedGradients, Norm]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "handler", "text"),
    [
        (SyncGradients, undeclared_read, "norm is read and not declared"),
        (SyncGradients, undeclared_write, "norm is returned and not declared"),
        (SyncGradients, left_out, "gradients is declared and not read"),
        (SyncGradients, not_written, "synced_gradients is not returned"),
        (ClipGradients, sure_of_a_pipeline, "pipeline may be None"),
        (StepSchedule, HANDLERS[ClipGradients], "mesh is read and not declared"),
    ],
)
def test_a_handler_that_is_not_what_its_op_declares_is_refused(
    kind: type[Op], handler: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        bind(kind, handler)


def lost(
    run: Run,
    op: ComputeLoss,
    mesh: Mesh,
    logits: Logits,
    batch: LocalBatch,
    tokens: TokenCount,
    step_loss: StepLoss,
    pipeline: Pipeline | None,
    compiled: CompiledGraphs | None,
    own_loss: OwnLoss | None,
) -> Loss | None:
    return Loss(logits.values.sum())


def test_logits_are_gone_once_the_loss_has_read_them() -> None:
    state = State(Logits(torch.ones(3)))
    execute = bind(ComputeLoss, lost).function()
    execute(None, ComputeLoss(vocab_over=()), state.values)
    assert state.get(Logits) is None
    assert state[Loss].value.item() == 3


def test_a_run_can_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Verdict(0.0, 0.0, 0, is_skipped=False).is_skipped = True  # type: ignore[misc]
    assert Run.__dataclass_params__.frozen  # type: ignore[attr-defined]
