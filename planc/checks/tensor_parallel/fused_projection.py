"""Fused projections that are sharded as if they were one."""

from __future__ import annotations

from collections.abc import Mapping

from planc.checks.support.attention_heads import AttentionHolders
from planc.checks.support.packed_layers import held_widths, packing_style
from planc.checks.support.remedies import changed, gathered
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.inventory.schema import Module
from planc.plan.bind import Assignment
from planc.plan.divided_heads import attention_around
from planc.styles.edges import FEATURES, normal
from planc.vocab import Shard, parent_of

CODE = Code("P417", "fused-projection", "a fused projection is sharded across its parts")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that shards the output of a fused projection."""
    consumers = _consumers(subject)
    attentions = AttentionHolders.of(subject.inventory)
    for span, assignments in by_rule(subject):
        fused = [
            assignment.fqn
            for assignment in assignments
            if _leaves_columns(assignment)
            and _is_fused(subject, assignment.fqn, consumers.get(assignment.fqn, ()), attentions)
        ]
        if fused:
            yield CODE.at(
                span,
                f"{subject.named(fused)} holds several projections in sequence",
                notes=("the first rank would get all of the first projection and none of the last",),
                help=_help(subject, fused),
            )


def _help(subject: Subject, fused: list[str]) -> str:
    """The style that shards each projection where they are known, or rules that gather the output."""
    held = {held_widths(subject, fqn) for fqn in fused}
    widths = held.pop()
    if widths is not None and not held:
        return f"shard each projection: write {changed(subject, fused, packing_style(widths))}"
    parents = [parent_of(fqn) for fqn in fused]
    return f"gather its output: write {gathered(subject, parents)}"


def _consumers(subject: Subject) -> Mapping[str, tuple[Module, ...]]:
    """The linear layers that each module's output reaches."""
    found: dict[str, tuple[Module, ...]] = {}
    for module in subject.inventory.modules:
        if module.is_linear:
            for source in module.sources:
                found[source] = (*found.get(source, ()), module)
    return found


def _leaves_columns(assignment: Assignment) -> bool:
    divides = assignment.style.parameters.get("weight") == Shard(0)
    return divides and normal(assignment.use.output) == FEATURES


def _is_fused(
    subject: Subject, fqn: str, consumers: tuple[Module, ...], attentions: AttentionHolders
) -> bool:
    """Whether all consumers take a fraction of the module's output, so its parts are used separately.

    A projection that feeds an attention alone may hold the parts head by head, which divides well; the factor
    test has found whether it does.
    """
    if fqn in subject.inventory.packed():
        return True
    if attention_around(fqn, subject.inventory.own_attentions) is not None:
        return False
    module = subject.inventory.get(fqn)
    if module is None or not module.is_linear or not consumers:
        return False
    if attentions.attention_of(fqn) is not None:
        return False
    alone = all(consumer.sources == (fqn,) for consumer in consumers)
    return alone and all(module.out_features > consumer.in_features for consumer in consumers)
