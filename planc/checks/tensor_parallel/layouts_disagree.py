"""Activations that arrive in another layout than declared, or are combined in different layouts."""

from __future__ import annotations

from typing import assert_never

from planc.checks.support.clash_report import ClashGroup, clash_groups, labels_at
from planc.checks.support.remedies import norms_heads
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.layout_remedies import combined_help, declared_help, is_exchanged
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code, Diagnostic
from planc.layouts.flow import ClashKind
from planc.layouts.types import GradientFault, takes_shards
from planc.source import Span
from planc.styles.edges import SEQUENCE
from planc.vocab import MeshDim

CODE = Code("P415", "layouts-disagree", "activation layout mismatch")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each pair of layouts that differ, at the rule to change."""
    # P407 reports the rule that shards heads which norms await.
    groups = [
        group for group in clash_groups(subject, ClashKind.OTHER) if not _are_heads_awaited(subject, group)
    ]
    exchanged = {fqn for group in groups if is_exchanged(subject, group) for fqn in group.consumers}
    # Other groups are consequences: they pass on the layout that should have entered. In a loop all are.
    causes = [group for group in groups if not exchanged.issuperset(group.producers)]
    on_shards = {module.fqn for module in takes_shards(subject.bound)}
    for group in causes or groups[:1]:
        if group.partners:
            yield _combined(subject, group)
        elif group.first.needs == SEQUENCE and on_shards.issuperset(group.consumers):
            yield _whole_at_experts(subject, group)
        else:
            yield _declared(subject, group)


def _are_heads_awaited(subject: Subject, group: ClashGroup) -> bool:
    """Whether norms for sharded heads get whole ones, and so do the modules after them."""
    if not all(norms_heads(subject, fqn) for fqn in group.consumers):
        return False
    clashes = (clash for clash in subject.flow.clashes if clash.kind is ClashKind.FEATURES_NOT_DIVIDED)
    waiting = (subject.inventory.get(clash.consumer) for clash in clashes)
    return any(fqn in module.sources for module in waiting if module for fqn in group.consumers)


def _combined(subject: Subject, group: ClashGroup) -> Diagnostic:
    """The finding for values that are added or multiplied, at the producer with the wrong layout."""
    needs, arriving = group.first.needs, group.first.arriving
    partners = subject.named(group.partners[:1])
    meeting = subject.named(group.consumers[:1])
    spans = subject.rule_spans(group.producers)
    span = subject.primary_span(spans)
    return CODE.at(
        span,
        subject.outputs(group.producers, arriving) + ("" if spans else ", since it has no rule"),
        secondary=(
            *labels_at(subject.rule_spans(group.partners[:1]), f"this outputs {needs}", apart_from=span),
            *labels_at(_meeting_spans(subject, group), "they are combined before this", apart_from=span),
        ),
        notes=(
            f"it is combined with {partners} before {meeting}",
            *subject.size_note(group.producers),
        ),
        help=combined_help(subject, group),
    )


def _meeting_spans(subject: Subject, group: ClashGroup) -> tuple[Span, ...]:
    """The rules of the modules that read the combined values: the consumer, or the next layer's modules."""
    consumer = group.consumers[0]
    readers = (module.fqn for module in subject.inventory.modules if consumer in module.sources)
    return subject.rule_spans([consumer]) or subject.rule_spans(tuple(readers))[:1]


def _declared(subject: Subject, group: ClashGroup) -> Diagnostic:
    """The finding for a module or a prepared container that gets an unexpected layout."""
    needs, arriving = group.first.needs, group.first.arriving
    spans = subject.rule_spans(group.consumers)
    span = subject.primary_span(spans)
    names = subject.named(group.consumers)
    is_several = len(subject.patterns(group.consumers)) > 1
    get = "get" if is_several else "gets"
    take = "take" if is_several or "{" in names else "takes"
    return CODE.at(
        span,
        f"needs {needs}, gets {arriving}" if spans else f"no rule matches {names}, which {get} {arriving}",
        secondary=(
            *labels_at(spans, "and here", apart_from=span),
            *labels_at(subject.rule_spans(group.producers), f"this outputs {arriving}", apart_from=span),
        ),
        notes=(
            f"{subject.outputs(group.producers, arriving)}, which {names} {take} as input",
            *_gradient(group.first.gradient),
            *subject.size_note(group.consumers),
        ),
        help=declared_help(subject, group),
    )


def _whole_at_experts(subject: Subject, group: ClashGroup) -> Diagnostic:
    """The finding for experts to which ranks of tp would send the same tokens."""
    spec, names = subject.plan.expert_parallel, subject.named(group.consumers)
    assert spec is not None, "only its experts take shards"
    gathering = [fqn for fqn in group.producers if (style := subject.style(fqn)) and style.prepares]
    if gathering:
        help = f"leave out the rule of {subject.named(gathering)}: experts and routers take shards"
    else:
        help = (
            "shard the sequence: write `auto(sequence_parallel = true)` in `tensor_parallel`, or the rules "
            "that `planc explain sequence_parallel` lists"
        )
    left = ", ".join(dim for dim in spec.on if dim is not MeshDim.TP)
    return CODE.at(
        spec.span,
        f"ranks of tp have the same tokens at {names}",
        secondary=labels_at(
            subject.rule_spans(group.producers), f"this outputs {group.first.arriving}", apart_from=spec.span
        ),
        notes=(
            "each would send them all to the experts, which would compute them once for each rank",
            *subject.size_note(group.consumers),
        ),
        help=f"{help}; or write `expert_parallel on {left or MeshDim.DP_SHARD} {{`",
    )


def _gradient(fault: GradientFault | None) -> tuple[str, ...]:
    """Describe what would happen to the consumer's gradients."""
    match fault:
        case GradientFault.NEVER_SUMMED:
            return ("its parameters are replicated, and nothing would sum their gradients over tp",)
        case GradientFault.SUMMED_AGAIN:
            return ("every rank would have the full gradient of its parameters, and tp would sum it again",)
        case None:
            return ()
        case _:
            assert_never(fault)
