"""Ops that need values or files, as a rehearsal plays them, and those that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from planc.graph import ops
from planc.graph.op import Op
from planc.graph.ops import ShardExperts
from planc.graph.sources import mixture_labels
from planc.modeling.language_part import without_values
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.order import SampleIds, SampleOrder
from planc.runtime.data.packing import PackedDataset
from planc.runtime.interpreter import Position
from planc.runtime.torch.checkpoint.planning import holdings_of
from planc.runtime.torch.checkpoint.tensors import named_packings, named_tensors, training_state
from planc.runtime.torch.dispatch import Handler
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.parallel import experts
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.packing import gathered, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Averages, Batch, Data, ImageEncoder, Images, Metrics, Verdict, Weights
from planc.runtime.torch.training.guarding import agree_on_worst
from planc.runtime.torch.training.images import placed
from planc.runtime.torch.training.preferences import PreferenceLoss
from planc.runtime.torch.training.step_loss import StepLoss
from planc.runtime.torch.training.step_read import summed
from planc.runtime.torch.training.stored_teacher import IDS, LOG_PROBABILITIES
from planc.runtime.torch.weights.export import without_gather_warnings
from planc.vocab import local_length


@dataclass(frozen=True, slots=True)
class _BalancedDispatch(experts.Dispatch):
    """A dispatch to experts of equal load."""

    def num_rows(self, sent: Tensor, received: Tensor, *, of_all: int) -> tuple[Sequence[int], Sequence[int]]:
        """Equal numbers of rows for each rank, and from it."""
        equal = [local_length(of_all, parts=self.num_ranks, index=index) for index in range(self.num_ranks)]
        return equal, equal


def _shard_experts(
    run: Run, op: ShardExperts, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Give this rank its experts, as a run does, and let forwards send equal numbers of tokens."""
    experts.dispatch_with(_BalancedDispatch, run, op, mesh, model, pipeline)


def open_data(run: Run, op: ops.OpenData) -> Data:
    """One sequence of zeros for each source, repeated: no shape depends on ids. It has two documents."""
    length, sources = op.sequence_length, mixture_labels(run.graph)
    begins = np.arange(len(sources) or 1) * length
    tokens = np.zeros(begins[-1] + length + 1, dtype=np.uint8)
    starts = np.add.outer(begins, (0, length // 2)).ravel() if op.packing in ("isolate", "whole") else None
    data = PackedDataset(tokens, length, 1, num_text_bytes=0, document_starts=starts)
    order = SampleOrder(data.num_sequences, op.shuffle_seed, sizes=(1,) * len(sources))
    source = BatchSource(data, order, op.global_batch, op.micro_batch, run.dp_size, run.dp_rank)
    return Data(op, BatchLoader(source), "", None)


class _Teacher:
    """The same tokens and log-probabilities for every sequence: no shape depends on them."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def rows(self, sample_ids: SampleIds) -> Mapping[str, Tensor]:
        shape = len(sample_ids), *self.shape
        return {IDS: torch.zeros(shape, dtype=torch.int32), LOG_PROBABILITIES: torch.zeros(shape)}


def open_teacher(run: Run, op: ops.OpenTeacher, data: Data) -> Data:
    """Let the sequences have a teacher, of which no file is read."""
    return replace(data, teacher=_Teacher(data.op.sequence_length, op.top_k))


def compute_reference(run: Run, op: ops.ComputeReference, own_loss: OwnLoss) -> OwnLoss:
    """Keep a number for the one sequence: the pass itself is a step's forward, and keeps less of it."""
    assert isinstance(own_loss, PreferenceLoss)
    reference = torch.zeros(1, dtype=torch.float64, device=run.device)
    return replace(own_loss, references={**own_loss.references, op.label: reference})


def reduce_metrics(
    run: Run, op: ops.ReduceMetrics, mesh: Mesh, step_loss: StepLoss
) -> tuple[Metrics, Verdict]:
    """Sum the loss; only in a run does it have a value."""
    return summed(op, mesh, step_loss, own_request=0.0), _TAKEN


def guard_step(run: Run, op: ops.GuardStep, mesh: Mesh) -> Verdict:
    """Agree on a verdict: only values decide which one."""
    agree_on_worst(mesh, op, torch.zeros((), dtype=torch.int64))
    return _TAKEN


def encode_images(
    run: Run, op: ops.EncodeImages, at: Position, batch: Batch, encoder: ImageEncoder
) -> Images:
    """Take memory for an encoder's features: its own code asks for the sizes of images."""
    inputs = batch.micro_batches[at.micro_step].inputs
    return placed(run, op, inputs, without_values(encoder.module, len(inputs), op.shape))


def save_checkpoint(
    run: Run,
    op: ops.SaveCheckpoint,
    weights: Weights,
    optimizer: Optimizer,
    averages: Averages | None,
    pipeline: Pipeline | None,
) -> None:
    """Find the boxes that this rank would write, and would read back."""
    state = training_state(weights, optimizer, averages, pipeline)
    holdings_of(named_tensors(state), named_packings(state))


def export_hf(run: Run, op: ops.ExportHf, weights: Weights) -> None:
    """Gather every weight, as an export does, and write none."""
    with without_gather_warnings():
        packings = packed_parameters(weights.model)
        for parameter in weights.model.parameters():
            narrow = parameter.detach().to(TORCH_DTYPES[op.dtype])
            gathered(narrow, packings.get(parameter))


_TAKEN = Verdict(loss=0.0, gradient_norm=0.0, num_labels=0, is_skipped=False)
PASSED_OVER = (
    *(ops.OpenLog, ops.Log, ops.OpenSource, ops.OpenEvaluation, ops.CountExperts, ops.ResumeCheckpoint),
    *(ops.StartProfile, ops.CompareReplicas, ops.Evaluate, ops.JudgeEvaluations, ops.StopProfile),
    *(ops.SettleSave, ops.BranchRun, ops.ReadGradients, ops.ReadStep, ops.ReadEvaluations),
    ops.AgreeToStop,
    *(ops.InitAdapters, ops.ExportAdapter, ops.LoadAdapters, ops.NameBase, ops.PushExport),
)
"""Ops that a rehearsal leaves out. An evaluation computes the forward of a step, and keeps less of it.
Neither reports nor the comparison of weights are part of a rehearsal, and there is nothing to resume from.
Adapters are small: filling and exporting them takes no memory that a step does not."""
PLAYED: Mapping[type[Op], Handler] = {
    ops.ShardExperts: _shard_experts,
    ops.OpenData: open_data,
    ops.OpenMaskedData: open_data,
    ops.OpenLabeledData: open_data,
    ops.OpenMatchedData: open_data,
    ops.OpenMappedData: open_data,
    ops.OpenImageData: open_data,
    ops.EncodeImages: encode_images,
    ops.OpenTeacher: open_teacher,
    ops.ComputeReference: compute_reference,
    ops.ReduceMetrics: reduce_metrics,
    ops.GuardStep: guard_step,
    ops.SaveCheckpoint: save_checkpoint,
    ops.ExportHf: export_hf,
}
