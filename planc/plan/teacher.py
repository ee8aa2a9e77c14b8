"""The plan that computes the logits of another plan's teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.inventory.schema import Inventory
from planc.plan.optimizer import Constant
from planc.plan.pattern import PatternRule, parse_own
from planc.plan.spec import FsdpSpec, Plan, Unit, Weights
from planc.plan.train import CrossEntropy, Distillation

_OF_TRAINING = (
    *("pipeline", "tensor_parallel", "expert_parallel", "fsdp", "context_parallel", "activation_checkpoint"),
    *("compile", "freeze", "adapter", "checkpoint", "hardware", "logging", "profile", "elastic", "guard"),
    "balance",
)


def teacher_plan(plan: Plan, inventory: Inventory, *, num_ranks: int) -> Plan:
    """The teacher of a plan's distillation on the plan's data, sharded over the ranks by its layers.

    It computes in the plan's dtype, with the plan's kind of attention. `inventory` is the teacher's.
    """
    loss, span = plan.train.loss, plan.span("train.loss")
    assert isinstance(loss, Distillation), "only a distillation has a teacher"
    dtype = plan.fsdp.param_dtype if plan.fsdp is not None else None
    model = replace(
        plan.model,
        hf=loss.teacher,
        architecture=None,
        weights=Weights.PRETRAINED,
        strip=None,
        dropout=False,
        dtype=dtype or plan.model.dtype,
        rope=None,
    )
    mesh = replace(plan.mesh, pp=1, dp_replicate=1, dp_shard=num_ranks, cp=1, tp=1)
    tokens = num_ranks * plan.data.micro_batch * plan.data.sequence_length
    train = replace(
        plan.train,
        steps=1,
        epochs=None,
        tokens_per_step=tokens,
        loss=CrossEntropy(label_smoothing=0.0, z_loss=0.0),
        loss_chunks=1,
        ema_decay=None,
        metrics=(),
        callbacks=(),
    )
    left_out: dict[str, Any] = dict.fromkeys(_OF_TRAINING)
    if num_ranks > 1:
        layers = tuple(parse_own(f"{block}.*", span) for block in inventory.blocks)
        unit = Unit(reshard_after_forward=True)
        rule = PatternRule(layers, unit, override=False, span=span, action_span=span)
        left_out["fsdp"] = FsdpSpec.on_dp_shard((rule,) if layers else (), span)
    return replace(
        plan,
        model=model,
        mesh=mesh,
        data=replace(plan.data, prefetch=0),
        optimizer=replace(plan.optimizer, rules=(), schedule=Constant(warmup=0)),
        train=train,
        **left_out,
        expectations=(),
        spans={path: span if path.partition(".")[0] == "model" else at for path, at in plan.spans.items()},
    )
