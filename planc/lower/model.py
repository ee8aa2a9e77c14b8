"""The model as an op: a class of transformers, or one of the plan's own code."""

from __future__ import annotations

from dataclasses import fields

from planc.graph.ops import BuildModel, BuildOwnModel
from planc.plan.bind import BoundPlan
from planc.plan.positions import grows, rope_parameters


def build_model(bound: BoundPlan) -> BuildModel:
    """The op that builds the model."""
    plan, inventory = bound.plan, bound.inventory
    build = BuildModel(
        path=plan.model.hf,
        config_digest=inventory.config_digest,
        architecture=inventory.architecture,
        dtype=plan.model.dtype,
        own_dtypes=inventory.own_dtypes(plan.model.dtype),
        kept_in_float32=inventory.kept_in_float32(plan.model.dtype),
        zeroed=() if plan.model.dropout else inventory.random,
        rope=rope_parameters(plan, inventory),
        rope_positions=plan.data.sequence_length if grows(plan, inventory) else None,
        span=plan.span("model.hf"),
    )
    if plan.model.architecture is None:
        return build
    values = {field.name: getattr(build, field.name) for field in fields(build) if field.name != "op"}
    return BuildOwnModel(**values, own=plan.model.architecture)
