"""Styles that place parameters by the model's own plan, on modules it does not place."""

from __future__ import annotations

from planc.checks.support.attention_heads import divided_attentions
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.inventory.schema import Module
from planc.layouts.data_order import module_of
from planc.layouts.families import quoted
from planc.plan.bind import Assignment
from planc.plan.parameters import sinks_of
from planc.plan.pattern import parse_own
from planc.styles.modules import REPLICATE
from planc.vocab import Replicate, sharded_lengths

CODE = Code("P430", "placed-by-model", "this style can't shard this module's parameters")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule and reason."""
    divided = {attention.fqn for attention, _ in divided_attentions(subject)}
    for span, assignments in by_rule(subject):
        reasons: dict[str, list[str]] = {}
        for assignment in assignments:
            reason = _reason(subject, assignment, divided) if assignment.style.placed_by_model else None
            if reason is not None:
                reasons.setdefault(reason, []).append(assignment.fqn)
        for reason, fqns in reasons.items():
            yield CODE.at(
                span,
                f"{subject.named(fqns)}: {reason}",
                notes=("names and shapes alone do not show the memory layout of such parameters",),
                help=f"write {changed(subject, fqns, REPLICATE.name)} to keep them whole",
            )


def _reason(subject: Subject, assignment: Assignment, divided: set[str]) -> str | None:
    """Explain why a style that follows the model's own plan does not apply to a module; None if it does."""
    fqn, style = assignment.fqn, assignment.style.name
    has_sinks = style == "local_params" and fqn in sinks_of(subject.inventory)
    if not has_sinks and style not in _own_styles(subject, fqn):
        return f"the model's own plan has no `{style}` for it"
    module = subject.inventory.get(fqn)
    assert module is not None, "styles are of modules of this inventory"
    whole = [
        parameter.name
        for parameter in module.parameters
        if assignment.placement(parameter.name) == Replicate()
    ]
    if whole:
        return f"the model's own plan does not shard {quoted(whole)}"
    if style == "local_params":
        return (
            None
            if fqn in divided
            else "its heads are not sharded, so its per-head parameters must not be either"
        )
    uneven = _of_other_width(module, assignment)
    if uneven is not None:
        return f"the model's own plan shards `{uneven}` as one layer, but it is as wide as several"
    inside = [module.fqn for module in subject.inventory.modules if module.fqn.startswith(f"{fqn}.")]
    passing = [one for one in inside if module_of(subject.inventory, one).class_name == "Identity"]
    if passing:
        return f"{quoted(passing[:1])} returns tokens as they are, which every rank would add"
    normed = [name for name in inside if "norm" in name.rpartition(".")[2]]
    return f"{quoted(normed[:1])} would normalize a partial sum" if normed else None


def _of_other_width(module: Module, assignment: Assignment) -> str | None:
    """The first parameter whose shards are wider than another's, so its layout must differ.

    Experts compute with the same intermediate features in all of their weights.
    """
    widths = {}
    for parameter in module.parameters:
        lengths = sharded_lengths(assignment.placement(parameter.name), parameter.shape)
        if lengths:
            widths[parameter.name] = lengths[0]
    return next((name for name, width in widths.items() if width > min(widths.values())), None)


def _own_styles(subject: Subject, fqn: str) -> frozenset[str]:
    """The styles that the model's own plan gives a module."""
    spec = subject.plan.tensor_parallel
    assert spec is not None, "only a tensor_parallel block gives styles"
    return frozenset(
        style for text, style in subject.inventory.tp_plan if parse_own(text, spec.span).select((fqn,))
    )
