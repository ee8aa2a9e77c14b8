"""The loss of pairs of answers, and the log-probabilities of their reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import logsigmoid

from planc.graph.ops import AttachAdapters, AttachDropout, BranchRun, BuildPreferenceLoss, ComputeReference
from planc.graph.sources import training_data
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.parallel.fsdp import reshard
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Data, LocalBatch, Perform, TokenCount, Weights
from planc.runtime.torch.training.loss_terms import token_losses
from planc.runtime.torch.training.step_loss import StepLoss

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW_TOLERANCE = 2e-2
"""The share by which log-probabilities of the same weights may differ: with other rows in the batch, kernels
may add in another order."""


@dataclass(frozen=True, slots=True)
class PreferenceLoss(OwnLoss):
    """Computes the loss of pairs; `reference` has each answer's log-probability before training."""

    beta: float
    label_smoothing: float
    reference: Tensor | None = None
    """[sequences], float64, on the device: 2p is of pair p's chosen answer, 2p + 1 of its rejected one."""

    def of_pairs(self, log_probabilities: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """The losses [pairs], and by how much more than the reference's a chosen answer leads [pairs].

        Both given are [2 * pairs]. Times `beta`, the lead is the margin of rewards.
        """
        gains = (log_probabilities - reference).view(-1, 2)
        margins = self.beta * (gains[:, 0] - gains[:, 1])
        share = self.label_smoothing
        return -(1 - share) * logsigmoid(margins) - share * logsigmoid(-margins), margins


def build_preference_loss(run: Run, op: BuildPreferenceLoss) -> OwnLoss:
    return PreferenceLoss(logsigmoid, (), op.beta, op.label_smoothing)


def mean_of_pairs(
    run: Run,
    at: Position,
    loss: PreferenceLoss,
    logits: Tensor,
    batch: LocalBatch,
    step_loss: StepLoss,
    *,
    group: ProcessGroup | None,
) -> Tensor:
    """A micro-batch's share of the mean over all pairs of the step, of logits [B, S, rank's vocabulary].

    In the pass of the reference, it keeps the log-probabilities instead. `group` has the ranks among which
    the vocabulary is sharded.
    """
    values = token_losses(
        logits.flatten(0, 1), batch.labels.flatten(), group=group, vocab_size=run.vocab_size
    )
    answers = -values.view(batch.labels.shape).sum(1, dtype=torch.float64)
    assert batch.sample_ids is not None, "the training data has pairs"
    if step_loss.reference is not None:
        step_loss.reference.index_add_(0, batch.sample_ids, answers)
        return answers.new_zeros(())
    assert loss.reference is not None, "the reference is computed before any step"
    reference = loss.reference[batch.sample_ids]
    if at.step == 1 and not run.is_rehearsal:
        _require_start(run, answers.detach(), reference, dtype=logits.dtype)
    losses, margins = loss.of_pairs(answers, reference)
    num_pairs = training_data(run.graph).global_batch // 2
    leads = margins.detach()
    step_loss.add_pairs(torch.stack((leads.sum(), (leads > 0).sum())) / num_pairs)
    return losses.sum() / num_pairs


def _require_start(run: Run, answers: Tensor, reference: Tensor, *, dtype: torch.dtype) -> None:
    """RunError unless step 1 starts from the reference: then every margin is 0, and the loss is log 2.

    What is dropped at random in training makes them differ.
    """
    setup = run.graph.setup
    is_random = any(
        isinstance(op, AttachDropout | BranchRun) or (isinstance(op, AttachAdapters) and op.dropout)
        for op in setup
    )
    difference = ((answers - reference).abs() / (reference.abs() + 1)).max().item()
    limit = _TOLERANCES.get(dtype, _NARROW_TOLERANCE)
    if not is_random and not (math.isfinite(difference) and difference <= limit):
        raise RunError(
            f"log-probabilities in step 1 differ from the reference's by a share of {difference:.2g}, "
            f"and both are of the same weights: {limit:g} is allowed",
            help="this is a fault of planc or of a kernel; set `attention = eager` in `model`, and report it",
        )


def compute_reference(
    run: Run,
    op: ComputeReference,
    at: Position,
    perform: Perform,
    mesh: Mesh,
    weights: Weights,
    data: Data,
    own_loss: OwnLoss,
) -> OwnLoss:
    """The loss with the log-probability of every answer, by the weights that training starts from."""
    assert isinstance(own_loss, PreferenceLoss)
    source, model = data.loader.source, weights.model
    pairs = EvaluationSet(source.dataset, source.dataset.num_sequences, source.micro_batch)
    count = torch.ones((), dtype=torch.int64, device=run.device)
    kept = torch.zeros(pairs.num_sequences, dtype=torch.float64, device=run.device)
    model.eval()
    with torch.no_grad():
        for batch in pairs.micro_batches(dp_size=run.dp_size, dp_rank=run.dp_rank):
            total = torch.zeros((), dtype=torch.float64, device=run.device)
            own = Batch([batch]), TokenCount(count), StepLoss(total, reference=kept)
            perform(op.body, Position(0), *own)
    model.train()
    reshard(model)
    reference = mesh.sum_over(kept, op.over)
    if not reference.isfinite().all():
        raise RunError("the reference's log-probabilities are NaN or inf", help="use other starting weights")
    run.observer.noted(f"reference: {pairs.num_sequences // 2} pairs, by the weights of step 0")
    return replace(own_loss, reference=reference)
