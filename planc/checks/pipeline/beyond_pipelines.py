"""What planc does not combine with pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.data import Packing
from planc.vocab import MeshDim

CODE = Code("P320", "beyond-pipelines", "planc does not combine this with pipelines")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error for each setting."""
    plan = subject.plan
    if plan.pipeline is None:
        return
    for path, text, help in (*_of_data(subject), *_of_the_model(subject), *_of_a_run(subject)):
        why = Label(plan.span("mesh.pp"), f"pp = {plan.mesh.pp}")
        yield CODE.at(plan.span(path), text, secondary=(why,), help=f"{help}, or set `pp` to 1")


Found = Iterator[tuple[str, str, str]]
"""Where, what it is, and what to write."""


def _of_data(subject: Subject) -> Found:
    plan = subject.plan
    if plan.mesh.cp > 1:
        yield "mesh.cp", "stages hold whole sequences", "set `cp` to 1"
    if plan.data.packing is Packing.ISOLATE:
        yield "data.packing", "documents are isolated", "write `packing = attend`"
    if plan.train.loss_chunks != 1:
        yield "train.loss_chunks", "the loss is computed in parts", "remove `loss_chunks`"
    for label in plan.data.eval:
        yield f"data.eval.{label}", "evaluations run no pipeline", "remove this block"


def _of_the_model(subject: Subject) -> Found:
    plan, inventory = subject.plan, subject.inventory
    lists = inventory.blocks
    if len(lists) != 1 or inventory.head is None:
        which = f"{len(lists)} lists of layers" if len(lists) != 1 else "no head that computes logits"
        yield "model", f"this model has {which}", "choose a model with one list of layers and a head"
    if plan.model.dropout and any(module.draws for module in inventory.modules):
        yield "model.dropout", "the model's dropout is in several stages", "write `dropout = false`"
    if plan.compile is not None and subject.bound.compiled:
        yield "compile", "layers are compiled", "remove this block"
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield "fsdp.cpu_offload", "parameters are in host memory", "write `cpu_offload = false`"


def _of_a_run(subject: Subject) -> Found:
    plan = subject.plan
    if plan.elastic is not None:
        yield "elastic", "an elastic run changes its mesh", "remove this block"
    if plan.guard is not None:
        yield "guard", "a guard judges steps on each rank", "remove this block"
    if plan.profile is not None:
        yield "profile", "a profile is of one process", "remove this block"


RULE = Rule((CODE,), check, over=MeshDim.PP)
