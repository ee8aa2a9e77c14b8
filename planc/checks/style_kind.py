"""Styles on modules that they cannot divide."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.families import families, quoted
from planc.checks.model import Rule, Subject
from planc.checks.rule_groups import by_rule
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind
from planc.plan.bind import Assignment
from planc.styles import STYLES
from planc.vocab import MeshDim

CODE = Code("P405", "style-kind", "this style does not fit the module")

_KINDS = {
    Kind.LINEAR: "a linear layer",
    Kind.EMBEDDING: "an embedding",
    Kind.NORM: "a norm",
    Kind.CONTAINER: "a container without parameters of its own",
    Kind.MODULE_LIST: "a module list",
    Kind.OTHER: "a module with parameters that no style knows",
}


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule and kind of module that it cannot be for."""
    for span, assignments in by_rule(subject):
        by_kind: dict[Kind, list[Assignment]] = {}
        for assignment in assignments:
            module = subject.inventory.get(assignment.fqn)
            if module is not None and module.kind not in assignment.style.kinds:
                by_kind.setdefault(module.kind, []).append(assignment)
        for kind, wrong in by_kind.items():
            style = wrong[0].style
            names = families(subject.inventory, [assignment.fqn for assignment in wrong])
            fitting = [other.name for other in STYLES if kind in other.kinds]
            yield CODE.at(
                wrong[0].rule.action_span if wrong[0].rule else span,
                f"{quoted(names[:3])} is {_KINDS[kind]}",
                notes=(f"`{style.name}` is for {', '.join(style.kinds)} modules",),
                help=f"for {_KINDS[kind]}: {', '.join(fitting)}"
                if fitting
                else "name the modules inside it that hold parameters",
            )


RULE = Rule((CODE,), check, over=MeshDim.TP)
