"""Ranks that train a plan until they are stopped, or on from what was saved, with the model's own outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.graph.op import Op
from planc.runtime.interpreter import Position, run
from planc.runtime.torch.session import Session
from planc.verify.ranks import (
    Metrics,
    Record,
    Recorder,
    Task,
    local_digests,
    open_session,
    packings_of,
    whole_tensors,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rank saw. `outputs` are the logits of the weights before its first step, whole."""

    record: Record
    outputs: Tensor
    tied: bool
    """Whether the head's weight is the embedding's when all is done."""


def trained(rank: int, world_size: int, task: Task, tokens: Tensor) -> Seen:
    """This rank's view of the task."""
    outputs: list[Tensor] = []

    def look(session: Session, op: Op, position: Position) -> None:
        if position.step and not outputs:
            with torch.no_grad():
                outputs.append(whole_outputs(session, tokens))

    metrics = Metrics()
    session = open_session(task, metrics)
    recorder = Recorder(session, before_op=look)
    run(task.graph, recorder, stop_after=task.stop_after)
    record = recorder.record
    record.metrics = metrics.steps
    parameters = dict(session.model.named_parameters())
    record.blocks |= local_digests(parameters, prefix="final ")
    record.final = whole_tensors(parameters, packings_of(session.model))
    embedding, head = session.model.get_input_embeddings(), session.model.get_output_embeddings()
    dist.destroy_process_group()
    return Seen(record, outputs[0], tied=embedding.weight is head.weight)


def whole_outputs(session: Session, tokens: Tensor) -> Tensor:
    """The logits of all tokens over the whole vocabulary, on every rank."""
    found = session.model(input_ids=tokens, use_cache=False).logits
    if isinstance(found, DTensor):
        return found.full_tensor()
    if found.shape[-1] == session.model.config.vocab_size:
        return found
    parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, found.contiguous())
    return torch.cat(parts, dim=-1)
