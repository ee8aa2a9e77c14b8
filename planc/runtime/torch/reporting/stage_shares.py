"""Each stage's share of a step's work in a pipeline: ranks whose stages are larger take longer by plan."""

from __future__ import annotations

from statistics import mean

from torch import nn

from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.vocab import MeshDim


def shares_of_ranks(run: Run, mesh: Mesh, model: nn.Module, pipeline: Pipeline) -> tuple[float, ...]:
    """Each rank's layers, its head counted in layers of as many parameters."""
    head = _head_in_layers(run, model, pipeline)
    by_place = [
        sum(_layers(pipeline, stage) + head * pipeline.is_last(stage) for stage in stages)
        for stages in (
            range(place, pipeline.num_stages, pipeline.num_ranks) for place in range(pipeline.num_ranks)
        )
    ]
    columns = mesh.columns(MeshDim.PP)
    places = {rank: place for column in columns for place, rank in enumerate(column)}
    return tuple(by_place[places[rank]] for rank in range(run.launch.world_size))


def _layers(pipeline: Pipeline, stage: int) -> int:
    return sum(name.startswith(f"{pipeline.op.blocks}.") for name in pipeline.op.stages[stage])


def _head_in_layers(run: Run, model: nn.Module, pipeline: Pipeline) -> float:
    """The head's parameters relative to those of this rank's mean layer."""
    own = [name for stage in pipeline.own for name in pipeline.op.stages[stage]]
    layers = [model.get_submodule(name) for name in own if name.startswith(f"{pipeline.op.blocks}.")]
    *_, hidden = pipeline.op.shape
    return (
        run.num_logits
        * hidden
        / mean(sum(weight.numel() for weight in layer.parameters()) for layer in layers)
    )
