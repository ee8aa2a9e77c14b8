"""The model as an op: a class of transformers, or one of the plan's own code."""

from __future__ import annotations

from dataclasses import fields

from planc.graph.ops import (
    BuildClassifier,
    BuildEmbedder,
    BuildModel,
    BuildOwnModel,
    LoadBase,
    LoadWeights,
)
from planc.plan.bind import BoundPlan
from planc.plan.positions import grows, rope_parameters
from planc.vocab import Task


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
    own, classes = plan.model.architecture, (inventory.classes if inventory.new_head else None)
    values = {field.name: getattr(build, field.name) for field in fields(build) if field.name != "op"}
    if own is not None:
        return BuildOwnModel(**values, own=own)
    if inventory.task is Task.EMBEDDING:
        return BuildEmbedder(**values)
    return build if classes is None else BuildClassifier(**values, task=classes.task, labels=classes.labels)


def load_weights(bound: BoundPlan) -> LoadWeights:
    """The op that reads the model's files, and draws a new head."""
    plan, head = bound.plan, bound.inventory.new_head
    path, seed, strip = plan.model.hf, plan.model.seed, plan.model.strip
    span = plan.span("model.weights")
    if head:
        return LoadBase(path=path, seed=seed, strip=strip, new=head, span=span)
    return LoadWeights(path=path, seed=seed, strip=strip, span=span)
