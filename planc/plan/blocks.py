"""The kinds of blocks: what each may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, field
from typing import Any

from planc.plan import spec
from planc.plan.adapter import Adapted, NotAdapted
from planc.plan.auto import Auto
from planc.plan.balance import BalanceSpec
from planc.plan.checkpoint import CheckpointSpec
from planc.plan.data import DataSpec
from planc.plan.dispatch import AllExperts, Dispatch
from planc.plan.elastic import ElasticSpec
from planc.plan.hardware import HardwareSpec
from planc.plan.keys import keys
from planc.plan.mesh import MeshSpec
from planc.plan.nested import freely_labelled, nested_blocks
from planc.plan.observing import GuardSpec, LoggingSpec, ProfileSpec
from planc.plan.optimizer import Group
from planc.plan.pipeline_schedule import StageOf
from planc.plan.style_actions import STYLE_ACTIONS, BufferShard, Frozen, NoRegion, Region, Trained
from planc.plan.train import TrainSpec
from planc.record import record
from planc.vocab import ELASTIC_DIMS, EXPERT_DIMS, SHARD_DIMS, MeshDim


@record
class Shape:
    """The content that a kind of block may have."""

    record: type[Any]
    required: bool = False
    actions: Mapping[str, type[Any]] | None = None
    directives: Mapping[str, type[Any]] = field(default_factory=dict)
    on: tuple[MeshDim, ...] = ()
    """The mesh dims that may follow `on`; empty where the block takes no `on`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of the block."""
        return tuple(spec_field.name for spec_field in keys(self.record))

    @property
    def nested(self) -> Mapping[str, Mapping[str, Shape]]:
        """The nested blocks, by name, then by label."""
        found = nested_blocks(self.record)
        return {
            name: {label: Shape(record) for label, record in labels.items()} for name, labels in found.items()
        }

    @property
    def freely_labelled(self) -> tuple[str, ...]:
        """The nested blocks whose labels a plan chooses; the label listed for one represents all."""
        return freely_labelled(self.record)

    def labelled(self, name: str, label: str) -> Shape | None:
        """Return the shape of the nested block `name "label"`; None for an unknown one."""
        shapes = self.nested[name]
        if name in self.freely_labelled:
            (shape,) = shapes.values()
            return shape
        return shapes.get(label)


BLOCKS: Mapping[str, Shape] = {
    "model": Shape(spec.ModelSpec, required=True),
    "mesh": Shape(MeshSpec),
    "pipeline": Shape(spec.PipelineSpec, actions={"stage": StageOf}, on=(MeshDim.PP,)),
    "tensor_parallel": Shape(
        spec.TensorParallelSpec, actions=STYLE_ACTIONS, directives={"auto": Auto}, on=(MeshDim.TP,)
    ),
    "expert_parallel": Shape(
        spec.ExpertParallelSpec,
        actions={"dispatch": Dispatch},
        directives={"auto": AllExperts},
        on=EXPERT_DIMS,
    ),
    "fsdp": Shape(spec.FsdpSpec, actions={"unit": spec.Unit}, on=SHARD_DIMS),
    "context_parallel": Shape(spec.ContextParallelSpec, actions={"Shard": BufferShard}, on=(MeshDim.CP,)),
    "activation_checkpoint": Shape(
        spec.ActivationCheckpointSpec,
        actions={
            "full": spec.FullCheckpointing,
            "selective": spec.SelectiveCheckpointing,
            "offload": spec.OffloadCheckpointing,
            "none": spec.NoCheckpointing,
        },
    ),
    "compile": Shape(spec.CompileSpec, actions={"region": Region, "none": NoRegion}),
    "freeze": Shape(spec.FreezeSpec, actions={"frozen": Frozen, "trained": Trained}),
    "adapter": Shape(spec.AdapterSpec, actions={"adapted": Adapted, "none": NotAdapted}),
    "data": Shape(DataSpec, required=True),
    "optimizer": Shape(spec.OptimizerSpec, required=True, actions={"group": Group}),
    "checkpoint": Shape(CheckpointSpec),
    "hardware": Shape(HardwareSpec),
    "train": Shape(TrainSpec, required=True),
    "logging": Shape(LoggingSpec),
    "profile": Shape(ProfileSpec),
    "elastic": Shape(ElasticSpec, on=ELASTIC_DIMS),
    "guard": Shape(GuardSpec),
    "balance": Shape(BalanceSpec),
}


def settings() -> Iterator[tuple[str, Field[Any]]]:
    """Every setting by its dotted path, `mesh.tp` or `checkpoint.export.hf.dtype`, with its field."""
    for kind, shape in BLOCKS.items():
        yield from _settings(kind, shape)


def setting_paths() -> Iterator[str]:
    """Every setting by its dotted path."""
    return (path for path, _ in settings())


def _settings(path: str, shape: Shape) -> Iterator[tuple[str, Field[Any]]]:
    yield from ((f"{path}.{key.name}", key) for key in keys(shape.record))
    for block, labels in shape.nested.items():
        for label, inner in labels.items() if block not in shape.freely_labelled else ():
            yield from _settings(f"{path}.{block}.{label}", inner)
