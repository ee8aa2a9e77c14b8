"""A directory of reference weights that is not of the plan's model, or next to adapters."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub.model_config import differences, model_config
from planc.plan.train import Preference

CODE = Code("P759", "reference-differs", "the reference is not a model of this plan")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for adapters, and one for what differs in config.json, if the directory has one."""
    plan, base = subject.plan, subject.base
    loss, span = plan.train.loss, plan.span("train.loss")
    if not isinstance(loss, Preference) or loss.reference is None:
        return
    if plan.adapter is not None:
        yield CODE.at(
            span,
            "a reference of other weights",
            secondary=(Label(plan.adapter.span, "layers have adapters"),),
            help="remove `reference`: with adapters, the reference is the base",
        )
    if base is None:
        return
    own, other = (model_config(path, base=base) for path in (plan.model.hf, loss.reference))
    # A kind of model that differs explains the rest.
    differing = sorted(differences(own, other), key=lambda pair: pair[0] != "model_type")
    for key, values in differing[:1]:
        others = ", ".join(f"`{name}`" for name, _ in differing[1:])
        yield CODE.at(
            span,
            f"its `{key}` is {values}",
            secondary=(Label(plan.span("model.hf"), "the model"),),
            notes=(f"also different: {others}",) if others else (),
            help="name a directory of the same architecture, as `export/hf` of another run",
        )
