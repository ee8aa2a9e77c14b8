"""The trials of the plan's own metrics and callbacks, by the names of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from planc.graph import ops
from planc.graph.graph import Graph
from planc.runtime.errors import RunError
from planc.runtime.rehearsal.stack import outline
from planc.runtime.torch.reporting.own_readers import setting_of, trials
from planc.runtime.torch.weights.adapters import attach
from planc.runtime.torch.weights.build import meta_model
from planc.verify.outcome import Item, Verdict


def readers_verdicts(graph: Graph, *, base: Path) -> Iterator[Verdict]:
    """A verdict for each: a small model lacks some of the parameters that they may ask for."""
    loads = [op for op in graph.setup if isinstance(op, ops.LoadReaders)]
    if not loads:
        return
    build = next(op for op in graph.setup if isinstance(op, ops.BuildModel))
    model = meta_model(build, base=base, runs_extensions=True)
    if graph.adapters is not None:
        attach(model, graph.adapters)
    setting = setting_of(graph, outline(model), device=torch.device("cpu"), rank=0)
    for trial in (trial for op in loads for trial in trials(op, setting, base=base, is_allowed=True)):
        try:
            yield Verdict(Item.OWN_CODE, True, trial().note)
        except RunError as error:
            yield Verdict(Item.OWN_CODE, False, error.message)
