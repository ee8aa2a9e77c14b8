"""Attention with only some of its queries, keys and values sharded."""

from __future__ import annotations

from collections.abc import Collection

from planc.checks.support.clash_report import ClashGroup, clash_groups, labels_at
from planc.checks.support.remedies import behind_norms, changed, gathered
from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.flow import ClashKind
from planc.vocab import parent_of

CODE = Code("P411", "heads-partly-divided", "queries, keys and values are sharded differently")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each projection that shards heads while another does not, at its rule."""
    for group in clash_groups(subject, ClashKind.HEADS_PARTLY):
        spans = subject.rule_spans(group.producers)
        span = subject.primary_span(spans)
        partners = behind_norms(subject, group.partners)
        bare = [fqn for fqn in partners if fqn not in subject.bound.styles]
        whole = subject.named(partners)
        yield CODE.at(
            span,
            f"shards the heads of {subject.named(group.producers)}",
            secondary=(
                *labels_at(
                    subject.rule_spans(partners),
                    "this keeps all heads on every rank",
                    apart_from=span,
                ),
                *labels_at(
                    subject.rule_spans(group.consumers), "they are combined before this", apart_from=span
                ),
            ),
            notes=(
                f"{whole} keeps all heads" + (", since it has no rule" if bare else ""),
                *subject.size_note(group.consumers),
            ),
            help=_help(subject, group),
        )


def _help(subject: Subject, group: ClashGroup) -> str:
    """The rules that shard the rest too, if the attention can work on some of its heads."""
    parents = {parent_of(fqn) for fqn in group.consumers}
    fixed = [
        attention.fqn
        for attention in subject.inventory.attentions
        if attention.fixed_heads and attention.fqn in parents
    ]
    if fixed:
        return f"this attention needs all heads on every rank: write {gathered(subject, fixed)}"
    partners = behind_norms(subject, group.partners)
    latent = [fqn for fqn in partners if _is_latent(subject, fqn, parents=parents)]
    if latent:
        return f"write {changed(subject, latent, 'mla_kv_a_proj')}"
    bare = [fqn for fqn in partners if fqn not in subject.bound.styles]
    if bare:
        return subject.rules_to_add(bare, "colwise")
    return f"write {changed(subject, partners, 'colwise')}"


def _is_latent(subject: Subject, fqn: str, *, parents: Collection[str]) -> bool:
    """Whether some features of a projection go to the heads, and the others into another layer first."""
    readers = [module for module in subject.inventory.modules if fqn in module.sources]
    return len([reader for reader in readers if parent_of(reader.fqn) in parents]) > 1
