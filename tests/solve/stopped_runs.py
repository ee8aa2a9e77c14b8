"""Ranks that train a plan until they are stopped, or on from what was saved, with the model's own outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.graph.op import Op
from planc.runtime.interpreter import Position, run
from planc.runtime.torch.dispatch import State
from planc.verify.ranks import (
    Metrics,
    Record,
    Recorder,
    Task,
    local_digests,
    open_run,
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

    def look(state: State, op: Op, position: Position) -> None:
        if position.step and not outputs:
            with torch.no_grad():
                outputs.append(whole_outputs(state, tokens))

    metrics = Metrics()
    recorder = Recorder(open_run(task, metrics), before_op=look)
    run(task.graph, recorder, stop_after=task.stop_after)
    record = recorder.record
    record.metrics = metrics.steps
    model: Any = recorder.state[nn.Module]
    parameters = dict(model.named_parameters())
    record.blocks |= local_digests(parameters, prefix="final ")
    record.final = whole_tensors(parameters, packings_of(model))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    dist.destroy_process_group()
    return Seen(record, outputs[0], tied=embedding.weight is head.weight)


def whole_outputs(state: State, tokens: Tensor) -> Tensor:
    """The logits of all tokens over the whole vocabulary, on every rank."""
    model: Any = state[nn.Module]
    found = model(input_ids=tokens, use_cache=False).logits
    if isinstance(found, DTensor):
        return found.full_tensor()
    if found.shape[-1] == model.config.vocab_size:
        return found
    parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, found.contiguous())
    return torch.cat(parts, dim=-1)
