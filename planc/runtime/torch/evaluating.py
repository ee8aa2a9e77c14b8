"""Evaluate weights outside of a run: setup without what only training needs, then each evaluation once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from planc.graph.op import Op, Stage
from planc.graph.ops import ComputeReference, Evaluate, LoadSchedule, OpenEvaluation, OpenLog
from planc.runtime.interpreter import Position, execute
from planc.runtime.observer import Evaluation
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.checkpoint import load
from planc.runtime.torch.checkpoint.base import base_of_resumed
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import begin_averages, training_state
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.state import Evaluations, Update, Weights
from planc.runtime.torch.training.averages import averages_of, take_averages
from planc.runtime.torch.weights.export_checkpoint import averages_in


def evaluate_weights(
    backend: TorchBackend, checkpoint: Path | None, *, averaged: bool = False
) -> tuple[Evaluation, ...]:
    """The result of each evaluation of the graph with a checkpoint's weights or averages, or with the weights
    that it starts from.

    Every rank must call it. RunError if the checkpoint is damaged or of another model. No file is written.
    """
    graph = backend.run.graph
    for op in graph.setup:
        if _is_needed(op):
            execute(backend, op, Position())
    step = _filled_from(backend, checkpoint, averaged) if checkpoint is not None else 0
    backend.state.put(Update(step))
    backend.state.put(Evaluations())
    for op in graph.step:
        if isinstance(op, Evaluate):
            execute(backend, replace(op, every_steps=1), Position(step))
    # A rank that exits first would cut the others off.
    dist.barrier()
    return backend.state[Evaluations].done


def _is_needed(op: Op) -> bool:
    return (
        isinstance(op, OpenEvaluation)
        or (isinstance(op, ComputeReference) and op.label != "")
        or (op.stage < Stage.OPTIMIZER and not isinstance(op, OpenLog | LoadSchedule))
    )


def _filled_from(backend: TorchBackend, checkpoint: Path, averaged: bool) -> int:
    """The checkpoint's step, after filling the model's tensors from it."""
    weights = backend.state[Weights]
    averages = averages_of(weights) if averaged else None
    with run_errors():
        state = training_state(weights, None, averages, backend.state.get(Pipeline))
        manifest = load(state, directory=checkpoint, in_place=True)
    base_of_resumed(backend.run, manifest, None)
    if averages is not None:
        averages_in(manifest, checkpoint)
        begin_averages(state, manifest)
        take_averages(averages, weights)
    return manifest.step
