"""Styles on modules of the wrong kind."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.remedies import changed, followers, is_sequence_divided
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.rule_groups import by_rule
from planc.diagnostics import Code
from planc.inventory.routers import routers
from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.layouts.families import families, quoted
from planc.layouts.places import weightless_norms
from planc.plan.bind import Assignment
from planc.styles import STYLES, Style
from planc.styles.edges import FEATURES, normal
from planc.styles.modules import SEQUENCE_PARALLEL
from planc.vocab import MeshDim

CODE = Code("P405", "style-kind", "this style does not fit the module")

_MAX_PATTERNS = 3

_KINDS = {
    Kind.LINEAR: ("a linear layer", "linear layers"),
    Kind.CONV1D: ("a Conv1D", "Conv1D layers"),
    Kind.EMBEDDING: ("an embedding", "embeddings"),
    Kind.NORM: ("a norm", "norms"),
    Kind.CONTAINER: (
        "a container without parameters of its own",
        "containers without parameters of their own",
    ),
    Kind.MODULE_LIST: ("a module list", "module lists"),
    Kind.OTHER: ("another kind of module", "other kinds of module"),
}
"""Each kind as one module, and as several."""


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding for each rule and wrong kind of module."""
    known = {router.fqn for router in routers(subject.inventory)}
    for span, assignments in by_rule(subject):
        by_kind: dict[Kind, list[Assignment]] = {}
        for assignment in assignments:
            module = subject.inventory.get(assignment.fqn)
            # A router takes token by token too.
            is_router = assignment.style is SEQUENCE_PARALLEL and assignment.fqn in known
            if module is not None and module.kind not in assignment.style.kinds and not is_router:
                by_kind.setdefault(module.kind, []).append(assignment)
        if Kind.CONTAINER in by_kind:
            by_kind[Kind.CONTAINER] = _without_norms(subject, by_kind[Kind.CONTAINER])
        for kind, wrong in by_kind.items():
            if not wrong:
                continue
            rule, fqns = wrong[0].rule, [assignment.fqn for assignment in wrong]
            yield CODE.at(
                rule.action_span if rule else span,
                _label(subject, kind, fqns, style=wrong[0].style),
                help=_help(subject, kind, fqns, style=wrong[0].style, is_rule=len(wrong) == len(assignments)),
            )


def _label(subject: Subject, kind: Kind, fqns: Sequence[str], *, style: Style) -> str:
    """`rowwise` needs a linear layer; these modules are norms, with the names in the place of `these`."""
    # A Conv1D is a linear layer for every style that takes both.
    kinds = (one for one in style.kinds if one is not Kind.CONV1D)
    needed = " or ".join(_KINDS[one][0] for one in kinds)
    names = families(subject.inventory, fqns)
    found = f"is {_KINDS[kind][0]}" if len(names) == 1 else f"are {_KINDS[kind][1]}"
    return f"`{style.name}` needs {needed}; {quoted(names[:_MAX_PATTERNS])} {found}"


def _without_norms(subject: Subject, assignments: Sequence[Assignment]) -> list[Assignment]:
    """The containers, except weightless norms with a style for norms on all features of a token."""
    norms = weightless_norms(subject.inventory)
    return [
        assignment
        for assignment in assignments
        if assignment.fqn not in norms
        or Kind.NORM not in assignment.style.kinds
        or normal(assignment.use.computes_on) == FEATURES
    ]


def _help(subject: Subject, kind: Kind, fqns: Sequence[str], *, style: Style, is_rule: bool) -> str:
    """The style to write; by its name alone if `is_rule`: all modules of the rule need it."""
    if style.prepares:
        return "leave this rule out: a prepared input is for attention or the MLP"
    if kind in (Kind.CONTAINER, Kind.MODULE_LIST):
        inside = _inside(subject, fqns)
        return (
            f"name the layers inside it: {inside}" if inside else "leave this rule out: it has no parameters"
        )
    if best := _best(subject, kind, fqns):
        return f"use `{best}`" if is_rule else f"write {changed(subject, fqns, best)}"
    return f"use one of {quoted(other.name for other in STYLES if kind in other.kinds)}"


def _best(subject: Subject, kind: Kind, fqns: Sequence[str]) -> str | None:
    """The style that suits modules of a kind in this plan; None if that depends on what the author wants."""
    if kind is Kind.NORM:
        return "sequence_parallel" if is_sequence_divided(subject) else "replicate"
    if kind is Kind.EMBEDDING:
        return "embedding_rowwise(output = Shard(1))" if is_sequence_divided(subject) else "embedding_rowwise"
    head = subject.inventory.head
    if kind in LINEAR_KINDS and all(followers(subject, [fqn]) or (head and fqn == head.fqn) for fqn in fqns):
        return "colwise"
    return None


def _inside(subject: Subject, fqns: Sequence[str]) -> str:
    """Modules with parameters in containers, as patterns over all layers."""
    held = [
        module.fqn
        for module in subject.inventory.modules
        if module.parameters and any(module.fqn.startswith(f"{fqn}.") for fqn in fqns)
    ]
    shown = subject.patterns(held)
    return ", ".join(f"`{pattern}`" for pattern in shown[:_MAX_PATTERNS]) + (
        ", ..." if len(shown) > _MAX_PATTERNS else ""
    )
