"""Messages that a stage of a pipeline receives and sends."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import ReceiveHidden, SendHidden
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.pipeline import Hidden, Pipeline, owner
from planc.runtime.torch.parallel.receives import Asked, Message
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch


def receive_hidden(
    run: Run, op: ReceiveHidden, at: Position, pipeline: Pipeline, batch: LocalBatch
) -> Hidden:
    """Wait for the stage before (activations) or after (gradients); nothing where there is none."""
    if op.what == "activations":
        hidden = pipeline.now = Hidden(at.stage, at.micro_step)
        if at.stage > 0:
            hidden.received = _received(run, pipeline, op.what, at).requires_grad_()
        return hidden
    hidden = pipeline.begin_backward(at)
    if not pipeline.is_last(at.stage):
        hidden.gradient = _received(run, pipeline, op.what, at)
    return hidden


def send_hidden(run: Run, op: SendHidden, at: Position, pipeline: Pipeline, hidden: Hidden) -> None:
    """Start to send to the stage after (activations) or before (gradients); nothing where there is none."""
    if op.what == "activations":
        if not pipeline.is_last(at.stage):
            assert hidden.sent is not None, "the layers of the stage ran"
            _refuse_other(pipeline, hidden.sent)
            _send(pipeline, op.what, hidden.take_sent(), to=at.stage + 1, at=at)
    elif at.stage > 0:
        received = hidden.received
        assert received is not None and received.grad is not None, "the layers of the stage have gradients"
        _send(pipeline, op.what, received.grad, to=at.stage - 1, at=at)


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


def finish_sends(pipeline: Pipeline) -> None:
    """Wait until every message has left, and forget micro-batches that have no backward."""
    for what in pipeline.sends:
        _wait_until(pipeline, what, num_left=0)
    pipeline.in_flight.clear()


def _received(run: Run, pipeline: Pipeline, what: str, at: Position) -> Tensor:
    return pipeline.receives.take(
        (what, at.stage, at.micro_step),
        partial(_ask, run, pipeline),
        # An evaluation has an order of its own.
        is_followed=torch.is_grad_enabled(),
    )


def _ask(run: Run, pipeline: Pipeline, message: Message) -> Asked:
    """Start to receive a message."""
    what, stage, micro_step = message
    source = stage - 1 if what == "activations" else stage + 1
    hidden = pipeline.new_hidden(run.device)
    tag = _tag(pipeline, source, micro_step)
    work = dist.irecv(hidden, group=getattr(pipeline, what), group_src=owner(pipeline, source), tag=tag)
    assert work is not None, "this rank is in the group"
    return work, hidden


def _send(pipeline: Pipeline, what: str, hidden: Tensor, *, to: int, at: Position) -> None:
    hidden = hidden.contiguous()
    tag = _tag(pipeline, at.stage, at.micro_step)
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
    """The tag of a message by a stage about a micro-batch; channels are apart."""
    return micro_step * pipeline.num_stages + stage
