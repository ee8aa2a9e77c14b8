"""The replicated projection of latent attention without sharded heads."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject
from planc.checks.support.rule_groups import by_reason
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.inventory.schema import Kind
from planc.layouts.families import quoted
from planc.plan.bind import Assignment
from planc.styles.edges import FEATURES
from planc.vocab import parent_of

CODE = Code("P432", "latent-projection", "`mla_kv_a_proj` needs latent attention with sharded heads")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule and reason."""

    def reason(assignment: Assignment) -> str | None:
        return _reason(subject, assignment.fqn) if assignment.style.meets_heads else None

    for span, found, fqns in by_reason(subject, reason):
        names = subject.patterns(fqns)
        yield CODE.at(
            span,
            f"{quoted(names)}: {found}",
            notes=("tp would sum the gradient of its rotary part, which is right only for sharded heads",),
            help=f"leave out the rule for `{names[0]}`, or shard the heads: `colwise` for the "
            "projections to queries, and to keys and values",
        )


def _reason(subject: Subject, fqn: str) -> str | None:
    attention = parent_of(fqn)
    readers = [module for module in subject.inventory.modules if fqn in module.sources]
    is_attention = attention in {one.fqn for one in subject.inventory.attentions}
    of_heads = [reader for reader in readers if reader.kind is Kind.NORM and _sums(subject, reader.fqn)]
    meeting = [reader for reader in readers if reader.is_linear and len(reader.sources) > 1] + of_heads
    is_normed = any(reader.kind is Kind.NORM and reader not in of_heads for reader in readers)
    if not (is_attention and is_normed and meeting):
        return "it does not compute latent keys and values with a rotary part"
    heads = [source for one in meeting for source in one.sources if source != fqn]
    leaving = [subject.flow.leaving.get(source) for source in heads]
    if any(value is not None and value.layout != FEATURES for value in leaving):
        return "every rank has all heads"
    return None


def _sums(subject: Subject, fqn: str) -> bool:
    """Whether a norm's style is for sharded heads."""
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and assignment.style.reduces_parameter_gradients
