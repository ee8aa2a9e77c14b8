"""Styles on modules that they cannot divide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.clash_report import patterns
from planc.checks.support.remedies import changed, followers, is_sequence_divided
from planc.checks.support.rule import Rule, Subject
from planc.checks.support.rule_groups import by_rule
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind
from planc.layouts.families import families, quoted
from planc.layouts.places import weightless_norms
from planc.layouts.types import FEATURES, normal
from planc.plan.bind import Assignment
from planc.styles import STYLES, Style
from planc.vocab import MeshDim

CODE = Code("P405", "style-kind", "this style does not fit the module")

_MAX_PATTERNS = 3

_KINDS = {
    Kind.LINEAR: "a linear layer",
    Kind.EMBEDDING: "an embedding",
    Kind.NORM: "a norm",
    Kind.CONTAINER: "a container without parameters of its own",
    Kind.MODULE_LIST: "a module list",
    Kind.OTHER: "a module that is no layer",
}


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule and kind of module that it cannot be for."""
    for span, assignments in by_rule(subject):
        by_kind: dict[Kind, list[Assignment]] = {}
        for assignment in assignments:
            module = subject.inventory.get(assignment.fqn)
            if module is not None and module.kind not in assignment.style.kinds:
                by_kind.setdefault(module.kind, []).append(assignment)
        if Kind.CONTAINER in by_kind:
            by_kind[Kind.CONTAINER] = _without_norms(subject, by_kind[Kind.CONTAINER])
        for kind, wrong in by_kind.items():
            if not wrong:
                continue
            style = wrong[0].style
            fqns = [assignment.fqn for assignment in wrong]
            yield CODE.at(
                wrong[0].rule.action_span if wrong[0].rule else span,
                f"{quoted(families(subject.inventory, fqns)[:3])} is {_KINDS[kind]}",
                notes=(f"`{style.name}` is for {', '.join(style.kinds)} modules",),
                help=_help(subject, kind, fqns, style=style),
            )


def _without_norms(subject: Subject, assignments: Sequence[Assignment]) -> list[Assignment]:
    """The containers, less weightless norms with rules for norms that keep a token's features together."""
    norms = weightless_norms(subject.inventory)
    return [
        one
        for one in assignments
        if one.fqn not in norms or Kind.NORM not in one.style.kinds or normal(one.use.computes_on) == FEATURES
    ]


def _help(subject: Subject, kind: Kind, fqns: Sequence[str], *, style: Style) -> str:
    fitting = [other.name for other in STYLES if kind in other.kinds]
    if style.prepares:
        return "leave this rule out: attention and the MLP are what takes a prepared input"
    if kind in (Kind.CONTAINER, Kind.MODULE_LIST):
        inside = _inside(subject, fqns)
        return (
            f"name the layers inside it: {inside}" if inside else "leave this rule out: it has no parameters"
        )
    if kind is Kind.NORM:
        best = "sequence_parallel" if is_sequence_divided(subject) else "replicate"
        return f"write {changed(subject, fqns, best)}; for {_KINDS[kind]} there are {', '.join(fitting)}"
    if kind is Kind.EMBEDDING:
        best = "embedding_rowwise(output = Shard(1))" if is_sequence_divided(subject) else "embedding_rowwise"
        return f"write {changed(subject, fqns, best)}; for {_KINDS[kind]} there are {', '.join(fitting)}"
    head = subject.inventory.head
    if kind is Kind.LINEAR and all(followers(subject, [fqn]) or (head and fqn == head.fqn) for fqn in fqns):
        return f"write {changed(subject, fqns, 'colwise')}; for {_KINDS[kind]} there are {', '.join(fitting)}"
    return f"for {_KINDS[kind]}: {', '.join(fitting)}"


def _inside(subject: Subject, fqns: Sequence[str]) -> str:
    """Modules with parameters in containers, as patterns over all layers."""
    held = [
        module.fqn
        for module in subject.inventory.modules
        if module.parameters and any(module.fqn.startswith(f"{fqn}.") for fqn in fqns)
    ]
    shown = patterns(subject, held)
    return ", ".join(f"`{pattern}`" for pattern in shown[:_MAX_PATTERNS]) + (
        ", ..." if len(shown) > _MAX_PATTERNS else ""
    )


RULE = Rule((CODE,), check, over=MeshDim.TP)
