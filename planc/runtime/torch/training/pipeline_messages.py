"""What a stage of a pipeline receives and sends."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import ReceiveHidden, SendHidden
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.pipeline import Hidden, Pipeline, owner
from planc.runtime.torch.parallel.receives import Asked, Message
from planc.runtime.torch.session import Session
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES


def receive_hidden(session: Session, op: ReceiveHidden, position: Position) -> None:
    """Wait for the stage before (activations) or after (gradients); nothing where there is none."""
    pipeline, stage = _pipeline(session), position.stage
    if op.what == "activations":
        pipeline.now = Hidden(stage, position.micro_step)
        if stage > 0:
            received = _received(session, pipeline, op.what, position)
            pipeline.now.received = received.requires_grad_()
    elif not pipeline.is_last(stage):
        pipeline.gradient = _received(session, pipeline, op.what, position)


def send_hidden(session: Session, op: SendHidden, position: Position) -> None:
    """Start to send to the stage after (activations) or before (gradients); nothing where there is none."""
    pipeline, stage = _pipeline(session), position.stage
    if op.what == "activations":
        if not pipeline.is_last(stage):
            assert pipeline.now.sent is not None, "the layers of the stage ran"
            _refuse_other(pipeline, pipeline.now.sent)
            _send(pipeline, op.what, pipeline.now.take_sent(), to=stage + 1, position=position)
    elif stage > 0:
        received = pipeline.now.received
        assert received is not None and received.grad is not None, "the layers of the stage have gradients"
        _send(pipeline, op.what, received.grad, to=stage - 1, position=position)


def _refuse_other(pipeline: Pipeline, hidden: Tensor) -> None:
    """RunError if a stage's output is not the message that the next stage expects."""
    expected, dtype = pipeline.op.shape, TORCH_DTYPES[pipeline.op.dtype]
    if (*hidden.shape,) == expected and hidden.dtype is dtype:
        return
    raise RunError(
        f"stage {pipeline.now.stage} puts out {hidden.dtype} {[*hidden.shape]}, "
        f"but the next stage expects {dtype} {[*expected]}",
        help="this model's layers do not pass on one tensor of hidden states: train it without a pipeline",
        span=pipeline.op.span,
    )


def finish_sends(session: Session) -> None:
    """Wait until every message has left, and forget micro-batches that have no backward."""
    pipeline = _pipeline(session)
    for what in pipeline.sends:
        _wait_until(pipeline, what, num_left=0)
    pipeline.in_flight.clear()


def _pipeline(session: Session) -> Pipeline:
    assert session.pipeline is not None, "pipeline.split precedes all messages"
    return session.pipeline


def _received(session: Session, pipeline: Pipeline, what: str, position: Position) -> Tensor:
    # An evaluation has an order of its own.
    return pipeline.receives.take(
        (what, position.stage, position.micro_step),
        partial(_ask, session, pipeline),
        is_followed=session.model.training,
    )


def _ask(session: Session, pipeline: Pipeline, message: Message) -> Asked:
    """Start to receive a message."""
    what, stage, micro_step = message
    source = stage - 1 if what == "activations" else stage + 1
    hidden = pipeline.new_hidden(session.device)
    tag = _tag(pipeline, source, micro_step)
    work = dist.irecv(hidden, group=getattr(pipeline, what), group_src=owner(pipeline, source), tag=tag)
    assert work is not None, "this rank is in the group"
    return work, hidden


def _send(pipeline: Pipeline, what: str, hidden: Tensor, *, to: int, position: Position) -> None:
    hidden = hidden.contiguous()
    tag = _tag(pipeline, position.stage, position.micro_step)
    group = getattr(pipeline, what)
    _wait_until(pipeline, what, num_left=pipeline.op.max_sends - 1)
    work = dist.isend(hidden, group=group, group_dst=owner(pipeline, to), tag=tag)
    assert work is not None, "this rank is in the group"
    pipeline.sends[what].append((work, hidden))


def _wait_until(pipeline: Pipeline, what: str, *, num_left: int) -> None:
    """Wait for the oldest messages until so many are under way, and let go of their tensors."""
    sends = pipeline.sends[what]
    while len(sends) > num_left:
        work, _ = sends.popleft()
        work.wait()


def _tag(pipeline: Pipeline, stage: int, micro_step: int) -> int:
    """Of a message by a stage about a micro-batch; channels are apart."""
    return micro_step * pipeline.num_stages + stage
