"""Features that planc does not combine with pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.pipeline.support import split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.entry import handed_on
from planc.plan.pipeline_schedule import ZeroBubble
from planc.plan.stages import sending_layers
from planc.plan.unit_dtypes import kept_from
from planc.styles.edges import SEQUENCE
from planc.vocab import MeshDim, Replicate

CODE = Code("P320", "beyond-pipelines", "planc does not combine this with pipelines")


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One error for each setting."""
    plan = subject.plan
    if plan.pipeline is None:
        return
    obstacles = (
        *_of_the_model(subject),
        *_of_the_rules(subject),
        *_of_the_schedule(subject),
        *_of_a_run(subject),
    )
    for path, text, help in obstacles:
        why = Label(plan.span("mesh.pp"), f"pp = {plan.mesh.pp}")
        yield CODE.at(plan.span(path), text, secondary=(why,), help=f"{help}, or set `pp` to 1")


Found = Iterator[tuple[str, str, str]]
"""The key in the plan, the feature, and what to write instead, of each combination."""


def _of_the_model(subject: Subject) -> Found:
    plan, inventory = subject.plan, subject.inventory
    lists = inventory.blocks
    if len(lists) != 1 or inventory.head is None:
        which = f"{len(lists)} lists of layers" if len(lists) != 1 else "no head that computes logits"
        yield "model", f"this model has {which}", "choose a model with one list of layers and a head"
    wanted = plan.fsdp.param_dtype if plan.fsdp is not None else None
    weights = {fqn for fqn, _, _ in inventory.parameters()}
    if weights & kept_from(subject.bound, wanted or plan.model.dtype):
        where = "model.dtype" if wanted is None else "fsdp.param_dtype"
        yield where, "some weights stay in float32, and so may what a stage sends", "write `float32`"
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield "fsdp.cpu_offload", "parameters are in host memory", "write `cpu_offload = false`"
    if plan.fsdp is not None and plan.fsdp.prefetch > 1:
        yield "fsdp.prefetch", "units of several stages take turns", "write `prefetch = 1`"


def _of_the_rules(subject: Subject) -> Found:
    """All stages send messages of one shape."""
    pipeline = split_pipeline(subject)
    if pipeline is None or subject.plan.mesh.tp == 1:
        return
    sending = sending_layers(subject.bound, pipeline)
    sent = {layer: handed_on(subject.bound, subject.flow, layer) for layer in sending}
    layouts = {layout for layout in sent.values() if layout is not None}
    if len(layouts) > 1 or not layouts <= {Replicate(), SEQUENCE}:
        given = ", ".join(f"`{layer}` in {layout}" for layer, layout in sent.items())
        text = f"stages send hidden states in other layouts: {given}"
        yield "tensor_parallel", text, "write rules with which all layers pass on one layout"


def _of_the_schedule(subject: Subject) -> Found:
    plan = subject.plan
    if (
        plan.pipeline is not None
        and isinstance(plan.pipeline.schedule, ZeroBubble)
        and subject.bound.compiled
    ):
        text = "compiled modules compute a backward as a whole, which `zero_bubble` divides"
        yield "compile", text, "write `schedule = one_f_one_b`"


def _of_a_run(subject: Subject) -> Found:
    plan = subject.plan
    if plan.elastic is not None:
        yield "elastic", "an elastic run changes its mesh", "remove this block"
    if plan.profile is not None:
        yield "profile", "a profile is of one process", "remove this block"
