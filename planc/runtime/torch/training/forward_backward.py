"""Forward, loss and backward."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

from planc.graph import ops
from planc.modeling.initialization import derived_seed
from planc.modeling.tasks import output_of
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.dropout.attach import begin_dropout
from planc.runtime.torch.dropout.masking import Masking
from planc.runtime.torch.extensions.loss import OwnLoss, labels_of
from planc.runtime.torch.parallel.deferred_weights import compute_gradients
from planc.runtime.torch.parallel.fsdp import Units, ending_as_stated, reduce_deferred
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Hidden, Pipeline
from planc.runtime.torch.parallel.replica_sums import ReplicaSums, begin_sums, replica_sums
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Gradients, Images, LocalBatch, Logits, Loss, TokenCount, Weights
from planc.runtime.torch.training.balance import Balance, balancing
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.expert_load import ExpertLoad, counting
from planc.runtime.torch.training.loss_chunks import losses_in_chunks
from planc.runtime.torch.training.loss_terms import LossWithTerms
from planc.runtime.torch.training.preferences import PreferenceLoss, loss_of_parts
from planc.runtime.torch.training.step_loss import StepLoss

_WIDE = (torch.float32, torch.float64)


def forward(
    run: Run,
    op: ops.Forward,
    at: Position,
    mesh: Mesh,
    weights: Weights,
    batch: LocalBatch,
    tokens: TokenCount,
    step_loss: StepLoss,
    pipeline: Pipeline | None,
    hidden: Hidden | None,
    documents: Documents | None,
    dropout: Masking | None,
    experts: ExpertLoad | None,
    compiled: CompiledGraphs | None,
    balance: Balance | None,
    own_loss: OwnLoss | None,
    images: Images | None,
) -> Logits:
    """Logits [micro_batch, local sequence, vocabulary or this rank's part of it]; the loss if it has chunks,
    and hidden states if the model has no head.

    The random state depends only on seed, step and data-parallel rank: equal over tp, different over dp,
    and the same after a resume.
    """
    model, own_loss = weights.model, own_loss and own_loss.of_batch(batch)
    _seed(derived_seed(run.seed, "step", at.step, at.micro_step, run.dp_rank), device=run.device)
    if dropout is not None and model.training:
        begin_dropout(dropout, run, at)
    if hidden is not None:
        hidden.recalls = [one.recall() for one in (documents, dropout) if one is not None]
    chunks: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    loss_op = _loss_op(run)
    if loss_op.chunks > 1 and (pipeline is None or pipeline.is_last(at.stage)):

        def part_loss(logits: Tensor, labels: Tensor) -> Tensor:
            return local_of(
                _mean_loss(run, loss_op, mesh, logits, labels, tokens, step_loss, compiled, own_loss)
            )

        if isinstance(own_loss, PreferenceLoss):
            assert isinstance(loss_op, ops.ComputePairLoss)
            labels, loss_of = loss_of_parts(run, loss_op, at, mesh, batch, step_loss, own_loss)
        else:
            labels, loss_of = labels_of(batch, own_loss), lambda sum_of_parts: sum_of_parts(part_loss)
        context = partial(_loss_context, loss_op)
        chunks = losses_in_chunks(model, loss_op, labels=labels, loss_of=loss_of, context=context)
    counts = counting(experts, run, at) if experts is not None else contextlib.nullcontext()
    balanced = balancing(balance, at, batch, tokens) if balance is not None else contextlib.nullcontext()
    with chunks, counts, balanced:
        output = model(**_inputs(batch, images), use_cache=False)
    return Logits(output_of(output))


def _inputs(batch: LocalBatch, images: Images | None) -> dict[str, Any]:
    """A model's arguments. An encoder-decoder numbers its tokens itself; no padding is in their midst."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids}
    if batch.decoder_input_ids is not None and batch.is_input is not None:
        return inputs | {"attention_mask": batch.is_input, "decoder_input_ids": batch.decoder_input_ids}
    if batch.token_types is not None:
        inputs["token_type_ids"] = batch.token_types
    if images is not None:
        seen = {"images": images.features, "image_places": images.places}
        return {**inputs, **seen, "position_ids": images.position_ids}
    return inputs | {"position_ids": batch.position_ids}


def _seed(seed: int, *, device: torch.device) -> None:
    """Set the random state of the host and of the device.

    `torch.manual_seed` does so for all kinds of device: for absent ones it keeps a stack trace each time,
    which takes longer than the whole interpretation of a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def compute_loss(
    run: Run,
    op: ops.ComputeLoss,
    at: Position,
    mesh: Mesh,
    logits: Logits,
    batch: LocalBatch,
    tokens: TokenCount,
    step_loss: StepLoss,
    pipeline: Pipeline | None,
    compiled: CompiledGraphs | None,
    own_loss: OwnLoss | None,
) -> Loss | None:
    """Local sum of cross entropies over the step's global token count: right for every mesh and packing.

    Zero if no token of the step is a label, and so are its gradients.
    """
    if pipeline is not None and not pipeline.is_last(at.stage):
        pipeline.finish_forward(at)
        return None
    own_loss = own_loss and own_loss.of_batch(batch)
    if op.chunks > 1:
        loss = logits.values
    else:
        with _loss_context(op):
            values, labels = logits.values, labels_of(batch, own_loss)
            if op.by_sequence:
                # A sequence's only label is at its first position.
                values, labels = values.unsqueeze(1), labels[:, :1]
            values, labels = values.flatten(0, 1), labels.flatten(0, 1)
            step_loss.count_right(values, labels, num_labels=tokens.labels)
            loss = _mean_loss(run, op, mesh, values, labels, tokens, step_loss, compiled, own_loss)
    step_loss.add(local_of(loss).detach(), batch)
    if pipeline is None:
        return Loss(loss)
    # The graph of a loss that outlives its backward would hold what the stage has received.
    pipeline.finish_forward(at, loss=loss)
    return None


def _mean_loss(
    run: Run,
    op: ops.ComputeLoss,
    mesh: Mesh,
    logits: Tensor,
    labels: Tensor,
    tokens: TokenCount,
    step_loss: StepLoss,
    compiled: CompiledGraphs | None,
    own_loss: OwnLoss | None,
) -> Tensor:
    """The loss of logits [T, vocabulary or this rank's part of it] in the step's mean, for labels [T], or
    those with what else the plan's own loss reads."""
    sums = step_loss.by_source
    if isinstance(own_loss, LossWithTerms):
        group = mesh.group(op.vocab_over[0]) if op.vocab_over else None
        values = own_loss.of_parts(logits, labels, group=group, vocab_size=run.num_logits)
    elif own_loss is not None:
        values = own_loss.values(_whole(run, op, mesh, logits), labels)
    elif compiled is not None and compiled.loss is not None:
        group = mesh.group(op.vocab_over[0]) if op.vocab_over else None
        values = compiled.loss(logits, labels, group=group, vocab_size=run.num_logits)
    else:
        values = _eager_loss(run, op, mesh, logits, labels, reduction="sum" if sums is None else "none")
    if sums is not None:
        sums.keep(local_of(values))
    return values.sum() / tokens.labels.clamp(min=1)


def _whole(run: Run, op: ops.ComputeLoss, mesh: Mesh, logits: Tensor) -> Tensor:
    """Logits of the whole vocabulary, gathered as the head made them, in float32 at least."""
    if op.vocab_over:
        logits = _over_vocabulary(run, op, mesh, logits).redistribute(placements=(Replicate(),)).to_local()
    return logits if logits.dtype in _WIDE else logits.float()


def _over_vocabulary(run: Run, op: ops.ComputeLoss, mesh: Mesh, logits: Tensor) -> DTensor:
    """The logits [T, vocabulary] of which this rank has a part."""
    (mesh_dim,) = op.vocab_over
    shape = torch.Size((len(logits), run.num_logits))
    return DTensor.from_local(
        logits, mesh.submesh(mesh_dim), (Shard(-1),), run_check=False, shape=shape, stride=(shape[1], 1)
    )


def _eager_loss(
    run: Run, op: ops.ComputeLoss, mesh: Mesh, logits: Tensor, labels: Tensor, *, reduction: str
) -> Tensor:
    logits = logits if logits.dtype in _WIDE else logits.float()
    if op.vocab_over:
        logits = _over_vocabulary(run, op, mesh, logits)
    return F.cross_entropy(logits, labels, reduction=reduction, ignore_index=IGNORED_LABEL)


def backward(
    run: Run,
    op: ops.Backward,
    at: Position,
    mesh: Mesh,
    weights: Weights,
    loss: Loss | None,
    pipeline: Pipeline | None,
    hidden: Hidden | None,
    units: Units | None,
    sums: ReplicaSums | None,
) -> tuple[Gradients, ReplicaSums | None]:
    """Compute gradients. Replicas reduce them on the last micro step, sharded units as their ops have it."""
    sums = sums or replica_sums(run, mesh, weights, pipeline)
    begin_sums(sums, at, pipeline, deferred=False)
    with ending_as_stated(weights.model, units, pipeline, at):
        if hidden is None:
            assert loss is not None, "without a pipeline every micro-batch has one"
            _backward_of_loss(run, loss.value)
        else:
            _backward_of_stage(run, hidden)
    return Gradients(weights), sums


def _backward_of_loss(run: Run, loss: Tensor) -> None:
    with _loss_context(_loss_op(run)):
        loss.backward()  # type: ignore[no-untyped-call]


def _backward_of_stage(run: Run, hidden: Hidden) -> None:
    """Compute from the loss, or from the gradient of what the stage has sent."""
    for recall in hidden.recalls:
        recall()
    loss, hidden.loss = hidden.loss, None
    if loss is not None:
        _backward_of_loss(run, loss)
        return
    assert hidden.origin is not None, "the stage's forward came before, and it trains a parameter"
    torch.autograd.backward(hidden.origin, hidden.gradient)
    hidden.gradient = None


def compute_weight_gradients(
    run: Run,
    op: ops.ComputeWeightGradients,
    at: Position,
    pipeline: Pipeline,
    gradients: Gradients,
    units: Units | None,
    sums: ReplicaSums | None,
) -> None:
    """Compute the gradients that the backward of a micro-batch has deferred."""
    begin_sums(sums, at, pipeline, deferred=True)
    compute_gradients(pipeline.deferred.pop((at.stage, at.micro_step)))
    reduce_deferred(gradients.weights.model, units, pipeline, at)


def _loss_op(run: Run) -> ops.ComputeLoss:
    micro_step = next(op for op in run.graph.step if isinstance(op, ops.Accumulate)).body
    return next(op for op in micro_step if isinstance(op, ops.ComputeLoss))


def _loss_context(op: ops.ComputeLoss) -> contextlib.AbstractContextManager[object]:
    # loss_parallel replaces the cross entropy of DTensors, forward and backward, while it is entered.
    return loss_parallel() if op.vocab_over else contextlib.nullcontext()
