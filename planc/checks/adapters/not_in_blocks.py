"""Frozen layers that can't be stored in 4 bits."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.routers import num_stacked
from planc.inventory.schema import Module
from planc.layouts.families import family
from planc.plan.adapter import AdaptedBase
from planc.plan.quantized import NF4_BLOCK
from planc.vocab import Shard

CODE = Code("P774", "base-not-quantizable", "the base can't be stored in 4 bits")

_SHOWN = ("colwise", "rowwise", "rowwise_split_input", "replicate")
"""The styles of quantized layers that were compared with one process."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each family of layers that has no whole blocks, and for each that stays as it is."""
    plan = subject.plan
    if plan.adapter is not None and plan.adapter.base is AdaptedBase.NF4:
        for text, help in dict.fromkeys(_faults(subject)):
            yield CODE.at(plan.span("adapter.base"), text, help=f"{help}, or remove `base = nf4`")


def _faults(subject: Subject) -> Iterator[tuple[str, str]]:
    inventory, styles, tp = subject.inventory, subject.bound.styles, subject.plan.mesh.tp
    if not subject.bound.quantized:
        yield "no linear layer is frozen", "freeze some"
    for module in inventory.modules:
        name = family(inventory, module.fqn)
        if num_stacked(module) and _is_frozen(subject, module):
            yield f"`{name}` stacks the weights of experts in one tensor", "train a model without experts"
        if module.fqn not in subject.bound.quantized:
            continue
        style, num_inputs = styles.get(module.fqn) if tp > 1 else None, module.in_features
        if num_inputs % NF4_BLOCK:
            text = f"`{name}` has {num_inputs} inputs, and {NF4_BLOCK} share a scale"
            yield text, f"train a model whose layers have multiples of {NF4_BLOCK} inputs"
        elif style is not None and style.style.name not in _SHOWN and style.parameters:
            yield f"`{name}` is {style.style.name}", f"leave `{name}` whole"
        elif style is not None and style.placement("weight") == Shard(1) and num_inputs // tp % NF4_BLOCK:
            text = f"tp = {tp} gives a rank {num_inputs // tp} inputs of `{name}`"
            yield f"{text}, and {NF4_BLOCK} share a scale", "choose a smaller `tp`"


def _is_frozen(subject: Subject, module: Module) -> bool:
    return any(f"{module.fqn}.{parameter.name}" in subject.bound.frozen for parameter in module.parameters)
