"""Ops that build and step the optimizer and its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from planc.extend.reference import Extension
from planc.graph.consequence import DERIVED, layout, numerics, output
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.optimizers import AnyOptimizer, OptimizerKind
from planc.optimizers.muon import Muon
from planc.optimizers.optimizer import Implementation
from planc.record import record


@record(kw_only=True)
class ParameterGroup:
    """Parameters with equal options. `lr` is the peak of their learning rate."""

    lr: float
    weight_decay: float
    parameters: tuple[str, ...]


@record(kw_only=True)
class MatrixGroup(ParameterGroup):
    """Matrices that Muon updates; what is in other groups its `rest` does.

    `widths` are the rows of each part of those that fuse several: each part is a matrix of its own.
    """

    widths: tuple[tuple[str, tuple[int, ...]], ...]


AnyGroup = MatrixGroup | ParameterGroup

_IMPLEMENTATION = layout("optimizer.kind.implementation", "optimizer implementation")


@record(kw_only=True)
class BuildOptimizer(Op):
    op: Literal["optimizer.build"] = "optimizer.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = "Builds the optimizer over the sharded parameters."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.OPTIMIZER,)
    )
    settings: Annotated[AnyOptimizer, numerics("optimizer.kind", "optimizer")]
    """Its kind, with its arguments but for lr and weight_decay."""
    implementation: Annotated[Implementation, _IMPLEMENTATION]
    lr: Annotated[float, numerics("optimizer.kind.lr", "optimizer lr")]
    groups: Annotated[tuple[AnyGroup, ...], numerics("optimizer", "parameter groups")]
    """Every parameter that is not frozen is in exactly one."""

    def settings_of(self, group: ParameterGroup) -> OptimizerKind:
        """The optimizer that updates a group."""
        own = self.settings
        return own.rest if isinstance(own, Muon) and not isinstance(group, MatrixGroup) else own

    def settings_by_parameter(self) -> Mapping[str, OptimizerKind]:
        """The optimizer that updates each parameter."""
        return {fqn: self.settings_of(group) for group in self.groups for fqn in group.parameters}

    def implementation_on(self, device: str) -> str:
        """The implementation on a type of device: what `auto` picks there, or what the plan names."""
        if self.implementation != "auto":
            return self.implementation
        own = self.settings.rest if isinstance(self.settings, Muon) else self.settings
        return own.auto_on_cuda if device == "cuda" else own.auto_on_cpu

    def num_copies(self, group: ParameterGroup) -> int:
        """Return the number of tensors of each parameter's size that a step on CUDA makes and frees.

        With `foreach` those of the whole group exist at once, with `for_loop` one parameter's. A fused
        kernel needs none.
        """
        chosen = self.implementation_on("cuda")
        if chosen == "fused":
            return 0
        is_for_loop = chosen == "for_loop"
        own = self.settings_of(group)
        return own.num_temporaries(is_for_loop=is_for_loop, decays=group.weight_decay > 0)


OWN_SCHEDULE = "own"
"""The kind of a schedule that the plan's own code computes."""


@record(kw_only=True)
class LoadSchedule(Op):
    op: Literal["schedule.load"] = "schedule.load"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = (
        "Runs the plan's own file, and tries that its schedule depends on the step alone."
    )
    touches: ClassVar[Effects] = Effects(writes=(Resource.OWN_SCHEDULE,))
    extension: Annotated[Extension, numerics("optimizer.schedule", "schedule")]


@record(kw_only=True)
class BuildSchedule(Op):
    op: Literal["schedule.build"] = "schedule.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = "Sets the learning-rate schedule."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.OPTIMIZER,),
        finds=(Resource.OWN_SCHEDULE,),
        writes=(Resource.OPTIMIZER, Resource.SCHEDULE),
    )
    kind: Annotated[str, numerics("optimizer.schedule", "schedule")]
    warmup_steps: Annotated[int, numerics("optimizer.schedule.warmup", "schedule warmup steps")]
    decay_steps: Annotated[int | None, numerics("optimizer.schedule.decay", "schedule decay steps")] = None
    """The number of last steps in which a `wsd` decays; None for the other kinds."""
    min_factor: Annotated[float, numerics("optimizer.schedule.min_factor", "schedule min_factor")]
    num_steps: Annotated[int, numerics("train.steps", "schedule ends at step")]


@record(kw_only=True)
class StepOptimizer(Op):
    op: Literal["optimizer.step"] = "optimizer.step"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = "Updates parameters by clipped gradients, and clears these."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.OPTIMIZER, Resource.WEIGHTS, Resource.CLIPPED_GRADIENTS, Resource.VERDICT),
        writes=(Resource.OPTIMIZER, Resource.WEIGHTS, Resource.UPDATE),
    )


@record(kw_only=True)
class BuildAverages(Op):
    op: Literal["ema.build"] = "ema.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = (
        "Copies the trained weights, in float32 at least, as the start of their averages."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.WEIGHTS,), writes=(Resource.AVERAGES,))


@record(kw_only=True)
class UpdateAverages(Op):
    op: Literal["ema.update"] = "ema.update"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = (
        "Moves each average towards its weight by 1 - ema_decay, unless the step is skipped."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.AVERAGES, Resource.WEIGHTS, Resource.VERDICT, Resource.UPDATE),
        writes=(Resource.AVERAGES,),
    )
    ema_decay: Annotated[float, numerics("train.ema_decay")]


@record(kw_only=True)
class ApplyAverages(Op):
    op: Literal["ema.apply"] = "ema.apply"
    stage: ClassVar[Stage] = Stage.SAVE
    summary: ClassVar[str] = "Puts the averages in the place of the weights, for the exports that follow."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.AVERAGES, Resource.WEIGHTS), writes=(Resource.WEIGHTS,)
    )
    when: Annotated[Literal["end"], DERIVED]
    exports: Annotated[tuple[str, ...], output("checkpoint.export", "exports of averages")]


@record(kw_only=True)
class StepSchedule(Op):
    op: Literal["schedule.step"] = "schedule.step"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = "Advances the learning rate."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.OPTIMIZER, Resource.SCHEDULE, Resource.UPDATE), writes=(Resource.OPTIMIZER,)
    )
