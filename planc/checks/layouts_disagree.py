"""Activations that do not arrive as declared, or that are combined in unlike layouts."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.clash_report import (
    ClashGroup,
    block_span,
    clash_groups,
    labels_at,
    patterns,
    rule_spans,
    size_note,
)
from planc.checks.families import quoted
from planc.checks.layout_flow import ClashKind
from planc.checks.model import Rule, Subject
from planc.checks.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim, Replicate

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
        secondary=labels_at(rule_spans(subject, group.partners[:1]), f"this leaves {needs}", apart_from=span),
        notes=(
            f"it is combined with {partners} on the way into {meeting}",
            *size_note(subject, group.producers),
        ),
        help=f"let {culprits} leave {needs}: `output = {needs}`"
        if spans and _takes(subject, group.producers[0], "output")
        else f"give both the same layout: {needs}",
    )


def _declared(subject: Subject, group: ClashGroup) -> Diagnostic:
    """A module, or a prepared container, that gets something other than it takes."""
    needs, arriving = group.first.needs, group.first.arriving
    spans = rule_spans(subject, group.consumers)
    span = spans[0] if spans else block_span(subject)
    names = quoted(patterns(subject, group.consumers))
    return CODE.at(
        span,
        f"takes {needs}, gets {arriving}" if spans else f"no rule names {names}, which get {arriving}",
        secondary=(
            *labels_at(spans[1:], "and here", apart_from=span),
            *labels_at(rule_spans(subject, group.producers), f"this leaves {arriving}", apart_from=span),
        ),
        notes=(
            f"{quoted(patterns(subject, group.producers))} leaves {arriving} for {names}",
            *size_note(subject, group.consumers),
        ),
        help=_help(subject, group),
    )


def _help(subject: Subject, group: ClashGroup) -> str:
    needs, arriving = group.first.needs, group.first.arriving
    consumer, producer = group.consumers[0], group.producers[0]
    if group.style is None:
        return f"add a rule for it that takes {arriving}, or gather before it"
    if "sequence_dim" in group.style.options:
        return f"let {quoted(patterns(subject, [producer]))} leave {needs}, or leave this rule out"
    if "desired" in group.style.options:
        return f"`input = {arriving}`, or let {quoted(patterns(subject, [producer]))} leave {needs}"
    if needs == Replicate() and _is_shared(subject, group):
        parents = tuple(dict.fromkeys(fqn.rpartition(".")[0] for fqn in group.consumers))
        gates = quoted(
            f'"{pattern}" -> prepare_input(input = {arriving}, desired = {needs})'
            for pattern in patterns(subject, parents)
        )
        return f"gather once for the siblings: add {gates}"
    if _takes(subject, consumer, "input"):
        return f"`input = {arriving}`, or let {quoted(patterns(subject, [producer]))} leave {needs}"
    return f"let {quoted(patterns(subject, [producer]))} leave {needs}"


def _is_shared(subject: Subject, group: ClashGroup) -> bool:
    """Whether several consumers stand in one container, which could gather for all of them."""
    parents = [fqn.rpartition(".")[0] for fqn in group.consumers]
    return all(parents) and len(set(parents)) < len(parents)


def _takes(subject: Subject, fqn: str, option: str) -> bool:
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and option in assignment.style.options


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
