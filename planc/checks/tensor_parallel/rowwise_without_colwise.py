"""Row-parallel layers with an unsharded input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.clash_report import ClashGroup, clash_groups, labels_at, rowwise_for
from planc.checks.support.remedies import (
    behind_norms,
    changed,
    divided_here,
    exchanged,
    followers,
    norms_heads,
)
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind

CODE = Code("P407", "rowwise-without-colwise", "a `rowwise` layer's input is not sharded")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the first `rowwise` rule, for all layers and rules with the same cause."""
    for group in clash_groups(subject, ClashKind.FEATURES_NOT_DIVIDED):
        spans = subject.rule_spans(group.consumers)
        span = subject.primary_span(spans)
        producing = subject.rule_spans(group.producers)
        bare = [fqn for fqn in group.producers if fqn not in subject.bound.styles]
        yield CODE.at(
            span,
            f"needs {group.first.needs}, gets {group.first.arriving}",
            secondary=(
                *labels_at(spans, "and here", apart_from=span),
                *labels_at(producing, f"this outputs {group.first.arriving}", apart_from=span),
            ),
            notes=(
                *_from(subject, group.producers, bare=bool(bare)),
                *subject.size_note(group.consumers),
            ),
            help=_help(subject, group),
        )


def _from(subject: Subject, producers: Sequence[str], *, bare: bool) -> Iterator[str]:
    """State the input's source, if planc tracks it."""
    if producers:
        yield f"the input comes from {subject.named(producers)}" + (", which has no rule" if bare else "")


def _help(subject: Subject, group: ClashGroup) -> str:
    """The rules that make the first of several layers colwise, and the last of them rowwise."""
    modules = map(subject.inventory.get, group.consumers)
    sources = [source for module in modules if module for source in module.sources]
    before = behind_norms(subject, sources)
    bare = [fqn for fqn in before if fqn not in subject.bound.styles]
    if bare and all(module and module.is_linear for module in map(subject.inventory.get, bare)):
        return subject.rules_to_add(bare, "colwise")
    if any(norms_heads(subject, fqn) for fqn in sources):
        return f"write {changed(subject, before, 'colwise')}, since the norms need sharded heads"
    first = [fqn for fqn in group.consumers if followers(subject, [fqn])]
    if not first:
        return f"write {divided_here(subject, group.consumers)} to split the input in this layer"
    last = [fqn for fqn in followers(subject, first) if fqn in exchanged(subject)]
    text = changed(subject, first, "colwise")
    if not last:
        return f"write {text}, since the next layer takes sharded features"
    return f"swap the styles: write {text}, and {changed(subject, last, rowwise_for(subject, last[0]))}"
