"""Forward, loss and backward."""

from __future__ import annotations

import contextlib
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from planc.graph.ops import Accumulate, Backward, ComputeLoss, ComputeWeightGradients, Forward
from planc.modeling.initialization import derived_seed
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.interpreter import Position
from planc.runtime.torch.dropout.attach import begin_dropout
from planc.runtime.torch.parallel.deferred_weights import compute_gradients
from planc.runtime.torch.parallel.fsdp import ending_as_stated, reduce_deferred
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.pipeline import Hidden, Pipeline
from planc.runtime.torch.parallel.replica_sums import begin_sums
from planc.runtime.torch.reporting.by_source import SourceSums
from planc.runtime.torch.reporting.expert_load import counting
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.loss_chunks import losses_in_chunks

_WIDE = (torch.float32, torch.float64)


def forward(session: Session, op: Forward, position: Position) -> None:
    """Logits [micro_batch, local sequence, vocabulary or this rank's part of it]; the loss if it has chunks.

    The random state depends only on seed, step and data-parallel rank: equal over tp, different over dp,
    and the same after a resume.
    """
    assert session.local_batch is not None
    _seed(
        derived_seed(session.seed, "step", position.step, position.micro_step, session.dp_rank),
        device=session.device,
    )
    begin_dropout(session, position)
    if session.pipeline is not None:
        _note_micro_batch(session, session.pipeline.now)
    with _loss_in_chunks(session, position), counting(session, position):
        session.logits = session.model(
            input_ids=session.local_batch.input_ids,
            position_ids=session.local_batch.position_ids,
            use_cache=False,
        ).logits


def _note_micro_batch(session: Session, hidden: Hidden) -> None:
    """Note what a recomputation in backward must see again."""
    if session.documents is not None:
        hidden.documents = session.documents.batch
    if session.masking is not None:
        hidden.dropout = session.masking.tokens, session.masking.seen


def _seed(seed: int, *, device: torch.device) -> None:
    """Set the random state of the host and of the device.

    `torch.manual_seed` does so for all kinds of device: for absent ones it keeps a stack trace each time,
    which takes longer than the whole interpretation of a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _loss_in_chunks(session: Session, position: Position) -> contextlib.AbstractContextManager[None]:
    """Inside, the model returns the loss in the place of logits, if the plan wants it in chunks."""
    op = _loss_op(session)
    is_elsewhere = session.pipeline is not None and not session.pipeline.is_last(position.stage)
    if op.chunks == 1 or is_elsewhere:
        return contextlib.nullcontext()
    assert session.local_batch is not None

    def part_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return local_of(_mean_loss(session, op, logits, labels))

    return losses_in_chunks(
        session.model,
        op,
        labels=session.local_batch.labels,
        part_loss=part_loss,
        context=partial(_loss_context, op),
    )


def compute_loss(session: Session, op: ComputeLoss, position: Position) -> None:
    """Local sum of cross entropies over the step's global token count: right for every mesh and packing.

    Zero if no token of the step is a label, and so are its gradients.
    """
    assert session.logits is not None and session.local_batch is not None
    pipeline = session.pipeline
    if pipeline is not None and not pipeline.is_last(position.stage):
        pipeline.finish_forward(position)
        session.logits = None
        return
    if op.chunks > 1:
        session.loss = session.logits
    else:
        with _loss_context(op):
            labels = session.local_batch.labels.flatten()
            session.loss = _mean_loss(session, op, session.logits.flatten(0, 1), labels)
    session.logits = None
    local = local_of(session.loss)
    assert session.step_loss is not None
    session.step_loss += local.detach()
    session.guard.micro_losses.append(local.detach())
    if (sums := _sums_by_source(session)) is not None:
        sums.add(session.local_batch)
    if pipeline is not None:
        pipeline.finish_forward(position, loss=session.loss)
        # Its graph would hold what the stage has received, and the gradient of that.
        session.loss = None


def _mean_loss(session: Session, op: ComputeLoss, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of logits [T, vocabulary or this rank's part of it] in the step's mean, for labels [T]."""
    logits = logits if logits.dtype in _WIDE else logits.float()
    if op.vocab_over:
        (mesh_dim,) = op.vocab_over
        shape = torch.Size((len(logits), session.vocab_size))
        logits = DTensor.from_local(
            logits,
            session.submesh(mesh_dim),
            (Shard(-1),),
            run_check=False,
            shape=shape,
            stride=(shape[1], 1),
        )
    sums = _sums_by_source(session)
    reduction = "sum" if sums is None else "none"
    found = F.cross_entropy(logits, labels, reduction=reduction, ignore_index=IGNORED_LABEL)
    if sums is not None:
        sums.keep(local_of(found))
    assert session.num_labels is not None
    return found.sum() / session.num_labels.clamp(min=1)


def _sums_by_source(session: Session) -> SourceSums | None:
    """The sums that a micro-batch adds to: None without a mixture, and in an evaluation."""
    assert session.local_batch is not None
    return session.source_sums if session.local_batch.sources is not None else None


def backward(session: Session, op: Backward, position: Position) -> None:
    """Compute gradients. Replicas reduce them on the last micro step, sharded units as their ops have it."""
    begin_sums(session, position)
    with ending_as_stated(session, position):
        if session.pipeline is None:
            assert session.loss is not None
            _backward_of_loss(session, session.loss)
            session.loss = None
        else:
            _backward_of_stage(session, session.pipeline, position)


def _backward_of_loss(session: Session, loss: Tensor) -> None:
    with _loss_context(_loss_op(session)):
        loss.backward()  # type: ignore[no-untyped-call]


def _backward_of_stage(session: Session, pipeline: Pipeline, position: Position) -> None:
    """From the loss, or from the gradient of what the stage has sent."""
    loss = pipeline.begin_backward(position)
    if session.documents is not None:
        session.documents.batch = pipeline.now.documents
    if session.masking is not None and pipeline.now.dropout is not None:
        session.masking.tokens, session.masking.seen = pipeline.now.dropout
    if loss is not None:
        _backward_of_loss(session, loss)
        return
    assert pipeline.now.origin is not None, "the stage's forward came before"
    torch.autograd.backward(pipeline.now.origin, pipeline.gradient)
    pipeline.gradient = None


def compute_weight_gradients(session: Session, op: ComputeWeightGradients, position: Position) -> None:
    """Compute the gradients that the backward of a micro-batch has deferred."""
    pipeline = session.pipeline
    assert pipeline is not None, "pipeline.split precedes all of its actions"
    begin_sums(session, position, deferred=True)
    compute_gradients(pipeline.deferred.pop((position.stage, position.micro_step)))
    reduce_deferred(session, position)


def _loss_op(session: Session) -> ComputeLoss:
    micro_step = next(op for op in session.graph.step if isinstance(op, Accumulate)).body
    return next(op for op in micro_step if isinstance(op, ComputeLoss))


def _loss_context(op: ComputeLoss) -> contextlib.AbstractContextManager[object]:
    # loss_parallel replaces the cross entropy of DTensors, forward and backward, while it is entered.
    return loss_parallel() if op.vocab_over else contextlib.nullcontext()
