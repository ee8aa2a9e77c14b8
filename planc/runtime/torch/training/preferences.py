"""The loss of pairs of answers, and the log-probabilities of their reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from planc.graph import ops
from planc.hub.model_config import differences
from planc.hub.names import model_folder
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import read_config
from planc.runtime.numerics import number
from planc.runtime.torch import state
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.parallel.fsdp import reshard
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.training import stored_reference
from planc.runtime.torch.training.evaluation import forward_alone
from planc.runtime.torch.training.loss_chunks import SumOfParts
from planc.runtime.torch.training.loss_terms import token_losses
from planc.runtime.torch.training.step_loss import PairSums, StepLoss

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW_TOLERANCE = 2e-2
"""The share by which log-probabilities of the same weights may differ: with other rows in the batch, kernels
may add in another order."""


@dataclass(frozen=True, slots=True)
class PreferenceLoss(OwnLoss):
    """Computes the loss of pairs; `references` have each answer's log-probability before training."""

    beta: float
    label_smoothing: float
    references: Mapping[str, Tensor] = field(default_factory=dict)
    """[sequences], float64, on the device: 2p is of pair p's chosen answer, 2p + 1 of its rejected one. By
    the evaluation's label, empty for the training data."""

    def of_pairs(self, log_probabilities: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """The losses [pairs], and by how much more than the reference's a chosen answer leads [pairs].

        Both given are [2 * pairs]. Times `beta`, the lead is the margin of rewards.
        """
        gains = (log_probabilities - reference).view(-1, 2)
        margins = self.beta * (gains[:, 0] - gains[:, 1])
        share = self.label_smoothing
        return -(1 - share) * logsigmoid(margins) - share * logsigmoid(-margins), margins


def build_preference_loss(run: Run, op: ops.BuildPreferenceLoss) -> OwnLoss:
    return PreferenceLoss(logsigmoid, (), op.beta, op.label_smoothing)


def compute_pair_loss(
    run: Run,
    op: ops.ComputePairLoss,
    at: Position,
    mesh: Mesh,
    logits: state.Logits,
    batch: state.LocalBatch,
    step_loss: StepLoss,
    pipeline: Pipeline | None,
    own_loss: OwnLoss,
) -> state.Loss | None:
    """A micro-batch's share of the mean over all pairs, of logits [B, S, rank's vocabulary].

    In the pass of a reference, it keeps the log-probabilities instead. The loss that it returns has the
    gradient of that share, and another value: ranks that have parts of the same answers need all of them for
    the gradient of one.
    """
    if pipeline is not None and not pipeline.is_last(at.stage):
        pipeline.finish_forward(at)
        return None
    assert isinstance(own_loss, PreferenceLoss) and step_loss.pairs is not None
    group = mesh.group(op.vocab_over[0]) if op.vocab_over else None
    if op.chunks > 1:
        loss = logits.values
    else:
        labels, values = batch.labels, logits.values.flatten(0, 1)
        losses = token_losses(values, labels.flatten(), group=group, vocab_size=run.num_logits)
        answers = -losses.view(labels.shape).sum(1, dtype=torch.float64)
        own = answers.detach().clone()
        slopes = _slopes(run, op, at, mesh, own, batch, step_loss, own_loss, dtype=values.dtype)
        loss = (answers * slopes).sum()
    if pipeline is None:
        return state.Loss(loss)
    pipeline.finish_forward(at, loss=loss)
    return None


def loss_of_parts(
    run: Run,
    op: ops.ComputePairLoss,
    at: Position,
    mesh: Mesh,
    batch: state.LocalBatch,
    step_loss: StepLoss,
    own_loss: PreferenceLoss,
) -> tuple[Tensor, Callable[[SumOfParts], Tensor]]:
    """Each token's label and row [B, S, 2], and the loss as a function of sums over parts of the tokens.

    All parts come once without gradients, for the log-probabilities of whole answers, and then once with
    them: each token's share of the loss is its own, times the slope of its answer.
    """
    group = mesh.group(op.vocab_over[0]) if op.vocab_over else None
    rows = torch.arange(len(batch.labels), device=batch.labels.device)
    of_tokens = torch.stack((batch.labels, rows[:, None].expand_as(batch.labels)), -1)

    def losses_of(logits: Tensor, tokens: Tensor) -> Tensor:
        return token_losses(logits, tokens[:, 0], group=group, vocab_size=run.num_logits)

    def loss_of(sum_of_parts: SumOfParts) -> Tensor:
        of_parts: list[Tensor] = []
        dtypes: set[torch.dtype] = set()

        def keep(logits: Tensor, tokens: Tensor) -> Tensor:
            dtypes.add(logits.dtype)
            of_parts.append(losses_of(logits, tokens))
            return of_parts[-1].sum()

        with torch.no_grad():
            sum_of_parts(keep)
        answers = -torch.cat(of_parts).view(batch.labels.shape).sum(1, dtype=torch.float64)
        slopes = _slopes(run, op, at, mesh, answers, batch, step_loss, own_loss, dtype=dtypes.pop())
        if not torch.is_grad_enabled():
            return answers.new_zeros(())
        return sum_of_parts(lambda logits, tokens: -(losses_of(logits, tokens) * slopes[tokens[:, 1]]).sum())

    return of_tokens, loss_of


def _slopes(
    run: Run,
    op: ops.ComputePairLoss,
    at: Position,
    mesh: Mesh,
    answers: Tensor,
    batch: state.LocalBatch,
    step_loss: StepLoss,
    own_loss: PreferenceLoss,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """The slope of the loss in the log-probability of each answer [B], of which `answers` are this rank's
    parts; 0 in the pass of a reference, which keeps them. `dtype` is that of their logits."""
    pairs = step_loss.pairs
    assert pairs is not None and batch.sample_ids is not None, "data in pairs has them"
    if pairs.answers is not None:
        pairs.answers.index_add_(0, batch.sample_ids.clamp(min=0), answers)
        return torch.zeros_like(answers)
    whole = mesh.sum_over(answers, op.over)
    if at.step == 1 and not pairs.label and not run.is_rehearsal:
        _require_start(run, whole, own_loss.references[""], batch.sample_ids, dtype=dtype)
    means, slopes = _means(whole, own_loss, batch, pairs)
    # The ranks that have parts of these answers add the same.
    means /= math.prod(map(run.graph.size, op.over))
    step_loss.add(means[0], batch)
    pairs.means += means[1:]
    return slopes


def _means(
    answers: Tensor, own_loss: PreferenceLoss, batch: state.LocalBatch, pairs: PairSums
) -> tuple[Tensor, Tensor]:
    """The micro-batch's shares of the means of loss, margin and accuracy [3], and the slope of the first in
    each answer's log-probability [B]."""
    assert batch.sample_ids is not None, "data in pairs has them"
    reference = own_loss.references[pairs.label][batch.sample_ids]
    # Every rank has as many micro-batches: rows past the end of an evaluation are of no pair.
    is_pair = batch.sample_ids[::2] >= 0
    with torch.enable_grad():
        answers.requires_grad_()
        losses, margins = own_loss.of_pairs(answers, reference)
        share = losses.where(is_pair, 0).sum() / pairs.num_pairs
    (slopes,) = torch.autograd.grad(share, answers)
    leads = margins.detach().where(is_pair, 0)
    of_rewards = torch.stack((leads.sum(), (leads > 0).sum())) / pairs.num_pairs
    return torch.cat((share.detach().view(1), of_rewards)), slopes


def _require_start(
    run: Run, answers: Tensor, reference: Tensor, sample_ids: Tensor, *, dtype: torch.dtype
) -> None:
    """RunError unless step 1 starts from the reference: then every margin is 0, and the loss is log 2.

    What is dropped at random in training makes them differ, as does a reference of another model.
    """
    setup = run.graph.setup
    may_differ = any(
        isinstance(op, ops.AttachDropout | ops.BranchRun)
        or (isinstance(op, ops.AttachAdapters) and op.dropout)
        or (isinstance(op, ops.ComputeReference) and op.path is not None)
        for op in setup
    )
    wanted = reference[sample_ids]
    shares, places = ((answers - wanted).abs() / (wanted.abs() + 1)).nan_to_num(math.inf).max(0)
    difference, answer = shares.item(), int(sample_ids[places].item())
    limit = _TOLERANCES.get(dtype, _NARROW_TOLERANCE)
    if not may_differ and not difference <= limit:
        kind = "rejected" if answer % 2 else "chosen"
        raise RunError(
            f"log-probabilities in step 1 differ from the reference's by a share of {difference:.2g} on rank "
            f"{run.launch.rank} ({kind} answer of pair {answer // 2}), and both are of the same weights: "
            f"{limit:g} is allowed",
            code=ExitCode.NUMERICS,
            help="this is a fault of planc or of a kernel; set `attention = eager` in `model`, and report it",
            is_shared=False,
            record={"reference": {"difference": number(difference), "pair": answer // 2, "answer": kind}},
        )


def compute_reference(
    run: Run,
    op: ops.ComputeReference,
    at: Position,
    perform: state.Perform,
    mesh: Mesh,
    weights: state.Weights,
    data: state.Data | None,
    sets: state.EvaluationSets | None,
    pipeline: Pipeline | None,
    own_loss: OwnLoss,
) -> OwnLoss:
    """The loss with the log-probability of every answer of one set, by the weights of the start or others.

    They are computed once in a run directory, and then read.
    """
    assert isinstance(own_loss, PreferenceLoss)
    evaluated = _set_of(op, data, sets)
    other = ops.LoadWeights(path=op.path, seed=run.seed, span=op.span) if op.path is not None else None
    if other is not None:
        _require_same_model(run, other, weights.model)
    fingerprint = f"{evaluated.fingerprint} {evaluated.num_sequences}"
    origin = stored_reference.origin_of(run, fingerprint, other=other)
    reference, source = None, "as stored"
    if origin is not None:
        reference = stored_reference.read(run, op.label, origin, num_answers=evaluated.num_sequences)
    if reference is None:
        with _weights_of(other, weights.model, perform, at):
            reference = _computed(run, op, perform, mesh, weights.model, evaluated, pipeline)
        source = "computed"
        if origin is not None:
            stored_reference.write(run, op.label, origin, reference)
    of = f" of evaluation {op.label}" if op.label else ""
    numbers = f"{evaluated.num_sequences // 2} pairs{of}"
    origin_of_weights = "step 0" if other is None else other.path
    run.observer.noted(f"reference: {numbers}, by the weights of {origin_of_weights}, {source}")
    return replace(own_loss, references={**own_loss.references, op.label: reference})


@agreed
def _require_same_model(run: Run, other: ops.LoadWeights, model: nn.Module) -> None:
    """RunError unless both directories have the settings that logits follow from."""
    paths = run.model_op.path, other.path
    written = [read_config(model_folder(path, base=run.paths.base)) for path in paths]
    # What a file leaves out is a default, and newer releases write other keys.
    kind: Any = type(model.config)
    whole = (
        kind.from_dict(dict(config)).to_dict() | {"type": config.get("model_type")} for config in written
    )
    for name, values in differences(*whole):
        raise RunError(
            f"the reference in {other.path} is not a model of this plan: its {name} is {values}",
            help="name a directory of the same architecture",
        )


@contextmanager
def _weights_of(
    other: ops.LoadWeights | None, model: nn.Module, perform: state.Perform, at: Position
) -> Iterator[None]:
    """Let the model have other weights; its own wait in host memory."""
    if other is None:
        yield
        return
    tensors = [local_of(tensor.detach()) for tensor in (*model.parameters(), *model.buffers())]
    own = [tensor.to("cpu", copy=True) for tensor in tensors]
    perform((other,), at)
    yield
    for tensor, values in zip(tensors, own, strict=True):
        tensor.copy_(values)


def _computed(
    run: Run,
    op: ops.ComputeReference,
    perform: state.Perform,
    mesh: Mesh,
    model: nn.Module,
    evaluated: EvaluationSet,
    pipeline: Pipeline | None,
) -> Tensor:
    """[sequences]: the log-probability of every answer, on every rank."""
    count = torch.ones((), dtype=torch.int64, device=run.device)
    answers = torch.zeros(evaluated.num_sequences, dtype=torch.float64, device=run.device)
    model.eval()
    with torch.no_grad():
        for batch in evaluated.micro_batches(dp_size=run.dp_size, dp_rank=run.dp_rank):
            pairs = replace(PairSums.begin(op.label, 1, device=run.device), answers=answers)
            total = StepLoss(answers.new_zeros(()), pairs=pairs)
            forward_alone(
                perform, op.body, Position(0), pipeline, state.Batch([batch]), state.TokenCount(count), total
            )
    model.train()
    reshard(model)
    reference = mesh.sum_over(answers, op.over)
    if not reference.isfinite().all():
        worst = int(reference.isfinite().logical_not().nonzero()[0].item()) // 2
        raise RunError(
            f"the reference's log-probabilities are NaN or inf, first those of pair {worst}",
            code=ExitCode.NUMERICS,
            help="use other starting weights",
            record={"reference": {"pair": worst}},
        )
    return reference


def _set_of(
    op: ops.ComputeReference, data: state.Data | None, sets: state.EvaluationSets | None
) -> EvaluationSet:
    if op.label:
        assert sets is not None
        return sets.by_label[op.label]
    assert data is not None
    source = data.loader.source
    return EvaluationSet(
        source.dataset, source.dataset.num_sequences, source.micro_batch, fingerprint=data.fingerprint
    )
