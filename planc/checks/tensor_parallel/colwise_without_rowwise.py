"""Sharded features that reach a module which needs them whole."""

from __future__ import annotations

from planc.checks.support.clash_report import ClashGroup, clash_groups, labels_at, rowwise_for
from planc.checks.support.remedies import changed, exchanged, gathered
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind
from planc.vocab import parent_of

CODE = Code("P406", "colwise-without-rowwise", "sharded features are never gathered or reduced")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the rule that shards, for all layers and producers of one kind of consumer."""
    elsewhere = exchanged(subject)
    for group in clash_groups(subject, ClashKind.FEATURES_STAY_DIVIDED):
        if elsewhere.issuperset(group.producers) or elsewhere.issuperset(group.consumers):
            continue  # P407 reports that the styles are swapped
        dividing = subject.rule_spans(group.producers)
        span = dividing[0] if dividing else subject.tp_span
        consumers = subject.rule_spans(group.consumers)
        yield CODE.at(
            span,
            subject.outputs(group.producers, group.first.arriving),
            secondary=(
                *labels_at(dividing, "and here", apart_from=span),
                *labels_at(consumers, f"this needs {group.first.needs}", apart_from=span),
            ),
            notes=(_meeting(subject, group), *subject.size_note(group.consumers)),
            help=_help(subject, group),
        )


def _meeting(subject: Subject, group: ClashGroup) -> str:
    if group.partners:
        return f"it is combined with {group.first.needs} from {subject.named(group.partners[:1])}"
    rule = "" if group.style else ", which has no rule"
    return f"it goes into {subject.named(group.consumers)}{rule}"


def _help(subject: Subject, group: ClashGroup) -> str:
    modules = group.producers if group.partners else group.consumers
    if not all(module and module.is_linear for module in map(subject.inventory.get, modules)):
        return "gather the features in this rule: write `output = Replicate()`"
    parents = dict.fromkeys(parent_of(fqn) for fqn in group.consumers)
    if any(module and module.parameters for module in map(subject.inventory.get, parents)):
        return f"gather the features: write {gathered(subject, tuple(parents))}"
    if group.partners and _are_siblings(subject, group):
        rowwise = rowwise_for(subject, group.consumers[0])
        first, last = changed(subject, group.partners, "colwise"), changed(subject, group.consumers, rowwise)
        return f"write {first} and {last}"
    action = rowwise_for(subject, modules[0])
    if group.partners or group.style:
        return f"write {changed(subject, modules, action)}"
    return subject.rules_to_add(modules, action)


def _are_siblings(subject: Subject, group: ClashGroup) -> bool:
    """Whether linear layers in one container combine their outputs for another one there."""
    met = (*group.producers, *group.partners, *group.consumers)
    modules = [subject.inventory.get(fqn) for fqn in met]
    parents = {parent_of(fqn) for fqn in (group.producers[0], group.partners[0], group.consumers[0])}
    return len(parents) == 1 and all(module and module.is_linear for module in modules)
