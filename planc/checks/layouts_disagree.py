"""Activations that do not arrive as declared, or that are combined in unlike layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from planc.checks.clash_report import (
    ClashGroup,
    block_span,
    clash_groups,
    labels_at,
    patterns,
    rule_spans,
    rules_to_add,
    size_note,
)
from planc.checks.families import quoted
from planc.checks.layout_flow import ClashKind
from planc.checks.layout_types import FEATURES, SEQUENCE, GradientFault
from planc.checks.model import Rule, Subject
from planc.checks.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind
from planc.source import Span
from planc.vocab import MeshDim, Placement, Replicate

CODE = Code("P415", "layouts-disagree", "an activation does not arrive in the layout that is needed")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each pair of layouts that do not fit, at the rule to change."""
    for group in clash_groups(subject, ClashKind.OTHER):
        yield _combined(subject, group) if group.partners else _declared(subject, group)


def _combined(subject: Subject, group: ClashGroup) -> Diagnostic:
    """Values that are added or multiplied: the odd one out is named first."""
    needs, arriving = group.first.needs, group.first.arriving
    culprits = quoted(patterns(subject, group.producers))
    partners = quoted(patterns(subject, group.partners[:1]))
    meeting = quoted(patterns(subject, group.consumers[:1]))
    spans = rule_spans(subject, group.producers)
    span = spans[0] if spans else block_span(subject)
    return CODE.at(
        span,
        f"{culprits} leaves {arriving}" + ("" if spans else ": no rule names it"),
        secondary=(
            *labels_at(rule_spans(subject, group.partners[:1]), f"this leaves {needs}", apart_from=span),
            *labels_at(_meeting_spans(subject, group), "they meet on the way here", apart_from=span),
        ),
        notes=(
            f"it is combined with {partners} on the way into {meeting}",
            *size_note(subject, group.producers),
        ),
        help=_combined_help(subject, group),
    )


def _meeting_spans(subject: Subject, group: ClashGroup) -> tuple[Span, ...]:
    """The rules of what reads the combined values: the consumer, or whatever a layer's output goes into."""
    consumer = group.consumers[0]
    readers = (module.fqn for module in subject.inventory.modules if consumer in module.sources)
    return rule_spans(subject, [consumer]) or rule_spans(subject, tuple(readers))[:1]


def _combined_help(subject: Subject, group: ClashGroup) -> str:
    producer, partner = group.producers[0], subject.bound.styles.get(group.partners[0])
    module = subject.inventory.get(producer)
    is_bare_linear = (
        module is not None and module.kind is Kind.LINEAR and producer not in subject.bound.styles
    )
    if is_bare_linear and partner is not None:
        return rules_to_add(subject, group.producers, partner.style.name)
    return _leave(subject, producer, group.first.needs)


def _declared(subject: Subject, group: ClashGroup) -> Diagnostic:
    """A module, or a prepared container, that gets something other than it takes."""
    needs, arriving = group.first.needs, group.first.arriving
    spans = rule_spans(subject, group.consumers)
    span = spans[0] if spans else block_span(subject)
    names = quoted(patterns(subject, group.consumers))
    if group.first.consumer in group.producers:
        return CODE.at(
            span,
            f"runs {names} on {arriving}",
            notes=_gradient(group.first.gradient),
            help=_help(subject, group),
        )
    return CODE.at(
        span,
        f"takes {needs}, gets {arriving}" if spans else f"no rule names {names}, which gets {arriving}",
        secondary=(
            *labels_at(spans[1:], "and here", apart_from=span),
            *labels_at(rule_spans(subject, group.producers), f"this leaves {arriving}", apart_from=span),
        ),
        notes=(
            f"{quoted(patterns(subject, group.producers))} leaves {arriving} for {names}",
            *_gradient(group.first.gradient),
            *size_note(subject, group.consumers),
        ),
        help=_help(subject, group),
    )


def _gradient(fault: GradientFault | None) -> tuple[str, ...]:
    """What would become of the consumer's gradients, if it ran."""
    match fault:
        case GradientFault.NEVER_SUMMED:
            return ("its parameters are whole, and nothing would sum their gradients over tp",)
        case GradientFault.SUMMED_AGAIN:
            return ("every rank would have the whole gradient of its parameters, and tp of them be summed",)
        case None:
            return ()
        case _:
            assert_never(fault)


def _help(subject: Subject, group: ClashGroup) -> str:
    needs, arriving = group.first.needs, group.first.arriving
    consumer, leave = group.consumers[0], _leave(subject, group.producers[0], needs)
    if consumer in group.producers:
        return f"write `desired = {needs}`, or divide the module's parameters with another style"
    if group.style is None:
        head = subject.inventory.head
        action = f"prepare_input(input = {arriving}, desired = {needs})"
        if head is not None and consumer == head.fqn:
            action = f"colwise(input = {arriving}, output = Shard(-1))"
        return rules_to_add(subject, group.consumers, action)
    if group.style.reduces_parameter_gradients and arriving == SEQUENCE:
        return "use `sequence_parallel`, which is for norms on a divided sequence"
    if "sequence_dim" in group.style.options and arriving == FEATURES:
        return "use `replicated_with_grad_allreduce`, which is for norms on divided heads"
    if "sequence_dim" in group.style.options:
        return f"{leave}, or leave this rule out"
    if needs == Replicate() and _is_shared(group):
        parents = [fqn.rpartition(".")[0] for fqn in group.consumers]
        action = f"prepare_input(input = {arriving}, desired = {needs})"
        return f"gather once for all: {rules_to_add(subject, parents, action)}"
    if _takes(subject, consumer, "input"):
        return f"write `input = {arriving}`, or {leave}"
    return leave


def _leave(subject: Subject, producer: str, placement: Placement) -> str:
    """How a producer comes to leave a placement."""
    module, names = subject.inventory.get(producer), quoted(patterns(subject, [producer]))
    if _takes(subject, producer, "output"):
        return f"let {names} leave {placement}: `output = {placement}`"
    if module is not None and module.kind is Kind.EMBEDDING and producer not in subject.bound.styles:
        return rules_to_add(subject, [producer], f"embedding_rowwise(output = {placement})")
    return f"let {names} leave {placement}"


def _is_shared(group: ClashGroup) -> bool:
    """Whether several consumers stand in one container, which could gather for all of them."""
    parents = [fqn.rpartition(".")[0] for fqn in group.consumers]
    return all(parents) and len(set(parents)) < len(parents)


def _takes(subject: Subject, fqn: str, option: str) -> bool:
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and option in assignment.style.options


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
