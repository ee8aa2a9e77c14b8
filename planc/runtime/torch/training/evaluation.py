"""The loss on held-out text: the same number of forwards on every rank, and one value on all."""

from __future__ import annotations

import time

import torch

from planc.graph.ops import (
    ComputeLoss,
    Evaluate,
    EvaluationOp,
    Forward,
    OpenEvaluation,
    ReceiveHidden,
    SendHidden,
    ShardContext,
)
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.ops import data_spec
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.observer import Evaluation
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.batches import opened, shard_context
from planc.runtime.torch.training.forward_backward import compute_loss, forward
from planc.runtime.torch.training.pipeline_messages import finish_sends, receive_hidden, send_hidden
from planc.runtime.torch.training.preemption import report_undone, reshard, stops_here, stretch
from planc.tables import plural


def open_evaluation(session: Session, op: OpenEvaluation, position: Position) -> None:
    """Read the text with the tokenizer, packing and length of the training data."""
    training = session.data_op
    spec, label = data_spec(op, training=training), f"evaluation {op.label}"
    data = opened(session, spec, vocab_size=training.vocab_size, label=label)
    if data is None:
        return
    num_sequences = data.dataset.num_sequences
    if op.sequences is not None and op.sequences > num_sequences:
        found = plural(num_sequences, "sequence")
        raise RunError(
            f'the evaluation "{op.label}" has {found}, not {op.sequences}',
            help="lower `sequences`, or leave it out to use all of them",
        )
    evaluation_set = EvaluationSet(data.dataset, op.sequences or num_sequences, training.micro_batch)
    if evaluation_set.num_target_tokens == 0:
        raise RunError(f'the evaluation "{op.label}" has no labels', help="use a source with answers in it")
    session.evaluation_sets[op.label] = evaluation_set
    session.observer.noted(f"evaluation {op.label}: {data.dataset.summary()}")


def evaluate(session: Session, op: Evaluate, position: Position) -> None:
    """Put the mean loss over a set into `session.evaluations`, if due.

    Every rank runs the same number of micro-batches, some perhaps without a label, so none waits for another.
    Between two of them a run that is asked to stop ends, without a mean; the checkpoint records that.
    """
    if position.step % op.every_steps and position.step != session.graph.num_steps:
        return
    began = time.perf_counter()
    is_postponed = op.label in session.pending_evaluations
    loss = _mean_loss(session, op, position)
    others = tuple(label for label in session.pending_evaluations if label != op.label)
    if loss is None:
        session.pending_evaluations = (*others, op.label)
    else:
        found = Evaluation(op.label, loss, session.evaluation_sets[op.label].num_target_tokens)
        session.pending_evaluations = others
        if is_postponed:
            session.observer.evaluated(found, step=position.step)
        else:
            session.evaluations.append(found)
    session.note_compilation(f"evaluation {op.label} after step {position.step}")
    # The time of a step does not include it.
    session.step_started += time.perf_counter() - began


def _mean_loss(session: Session, op: Evaluate, position: Position) -> float | None:
    """The mean loss over a set; None if the run ends before it is known."""
    dataset = session.evaluation_sets[op.label]
    step = (session.batch, session.num_labels, session.step_loss)
    session.num_labels = torch.full((), dataset.num_target_tokens, dtype=torch.int64, device=session.device)
    total = session.step_loss = torch.zeros((), dtype=torch.float64, device=session.device)
    session.model.eval()
    is_stopped = False
    with torch.no_grad():
        for batch in dataset.micro_batches(dp_size=session.dp_size, dp_rank=session.dp_rank):
            if is_stopped := stops_here(session):
                report_undone(session, f'the evaluation "{op.label}" after step {position.step}')
                break
            session.batch = [batch]
            with stretch(session, "a micro-batch of an evaluation"):
                for stage in session.pipeline.own if session.pipeline is not None else (0,):
                    for inner in op.body:
                        _run(session, inner, Position(position.step, stage=stage))
                if session.pipeline is not None:
                    finish_sends(session)
    session.model.train()
    if not is_stopped:
        session.sum_over(total, op.over)
    session.batch, session.num_labels, session.step_loss = step
    session.loss = None
    reshard(session)
    return None if is_stopped else total.item()


def _run(session: Session, op: EvaluationOp, position: Position) -> None:
    match op:
        case ReceiveHidden():
            receive_hidden(session, op, position)
        case SendHidden():
            send_hidden(session, op, position)
        case ShardContext():
            shard_context(session, op, position)
        case Forward():
            forward(session, op, position)
        case ComputeLoss():
            compute_loss(session, op, position)
