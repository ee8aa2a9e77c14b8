"""Prepared inputs that meet modules or values without a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planc.checks.clash_report import patterns
from planc.checks.colwise_without_rowwise import CODE as COLWISE_WITHOUT_ROWWISE
from planc.checks.families import quoted
from planc.checks.heads_partly_divided import CODE as HEADS_PARTLY_DIVIDED
from planc.checks.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.model import Rule, Subject
from planc.checks.rowwise_without_colwise import CODE as ROWWISE_WITHOUT_COLWISE
from planc.checks.rule_groups import by_rule
from planc.checks.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Module
from planc.styles import Style
from planc.vocab import MeshDim

CODE = Code("P419", "prepared-input", "this module cannot take a prepared input")
"""A prepared input is a DTensor: it goes into modules with a style, and into nothing else."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each `prepare_input` rule and reason."""
    inside = _inside(subject)
    for span, assignments in by_rule(subject):
        if not _prepares(assignments[0].style):
            continue
        reasons: dict[str, list[str]] = {}
        for assignment in assignments:
            module = subject.inventory.get(assignment.fqn)
            assert module is not None, "styles are of modules of this inventory"
            reason = _reason(subject, module, inside.get(module.fqn, ()))
            if reason is not None:
                reasons.setdefault(reason, []).append(assignment.fqn)
        for reason, fqns in reasons.items():
            yield CODE.at(
                span,
                f"prepares the input of {quoted(patterns(subject, fqns))}, {reason}",
                notes=("the input arrives as a DTensor, which plain tensors cannot meet",),
                help="prepare the input of the attention and of the MLP, and give a style to what reads it",
            )


def _inside(subject: Subject) -> Mapping[str, Sequence[Module]]:
    """By prepared module, everything inside it."""
    found: dict[str, list[Module]] = {
        fqn: [] for fqn, assignment in subject.bound.styles.items() if _prepares(assignment.style)
    }
    for module in subject.inventory.modules:
        fqn = module.fqn
        while found and (fqn := fqn.rpartition(".")[0]):
            if fqn in found:
                found[fqn].append(module)
    return found


def _reason(subject: Subject, module: Module, inside: Sequence[Module]) -> str | None:
    if module.parameters:
        return "which has parameters of its own"
    readers = [one for one in inside if one.parameters and _from_outside(one.sources, module.fqn)]
    if not readers:
        return "in which no layer reads it"
    if _from_outside(module.returns, module.fqn):
        return "which adds it to its own output"
    bare = [one.fqn for one in readers if not _takes_layouts(subject, one.fqn)]
    if bare:
        return f"which {quoted(patterns(subject, bare))} reads without a style"
    inner = [one.fqn for one in inside if _is_prepared(subject, one.fqn)]
    return f"inside which {quoted(patterns(subject, inner))} is prepared again" if inner else None


def _from_outside(sources: Sequence[str], fqn: str) -> bool:
    return any(not source.startswith(f"{fqn}.") for source in sources)


def _takes_layouts(subject: Subject, fqn: str) -> bool:
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and assignment.style.name != "replicate"


def _is_prepared(subject: Subject, fqn: str) -> bool:
    assignment = subject.bound.styles.get(fqn)
    return assignment is not None and _prepares(assignment.style)


def _prepares(style: Style) -> bool:
    return "desired" in style.options


RULE = Rule(
    (CODE,),
    check,
    over=MeshDim.TP,
    block="tensor_parallel",
    unless=(
        *TENSOR_PARALLEL_FAULTS,
        COLWISE_WITHOUT_ROWWISE,
        ROWWISE_WITHOUT_COLWISE,
        HEADS_PARTLY_DIVIDED,
        LAYOUTS_DISAGREE,
    ),
)
