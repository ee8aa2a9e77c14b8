"""Prepared inputs that reach plain modules or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.colwise_without_rowwise import CODE as COLWISE_WITHOUT_ROWWISE
from planc.checks.tensor_parallel.heads_partly_divided import CODE as HEADS_PARTLY_DIVIDED
from planc.checks.tensor_parallel.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.tensor_parallel.rowwise_without_colwise import CODE as ROWWISE_WITHOUT_COLWISE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.inventory.schema import Module
from planc.plan.bind import Assignment
from planc.styles.edges import SEQUENCE, normal
from planc.vocab import MeshDim, ancestors

CODE = Code("P419", "prepared-input", "this module can't take a prepared input")
"""The summary's reason: ranks sum its gradient, and only modules with a style give each rank's part of it."""

_SUMMED = "the input's gradient is summed over ranks, and code without a style has all of it on each"
_UNREAD = "planc tracks hidden states from layer to layer, and none enters this module"
_SEVERAL = "which returns more than one value to redistribute"
_ELSEWHERE = "leave this rule out: a prepared input is for attention or the MLP"


@reports(
    CODE,
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
def check(subject: Subject) -> Findings:
    """One finding for each `prepare_` rule and reason."""
    inside = _inside(subject)
    for span, assignments in by_rule(subject):
        if not assignments[0].style.prepares:
            continue
        sums = _sums_gradients(assignments[0])
        reasons: dict[tuple[str, str], list[str]] = {}
        for assignment in assignments:
            module = subject.inventory.get(assignment.fqn)
            assert module is not None, "styles are of modules of this inventory"
            found = _reason(subject, module, inside)
            if found is not None:
                reasons.setdefault(found, []).append(assignment.fqn)
        for (reason, help), fqns in reasons.items():
            yield CODE.at(
                span,
                f"prepares the input of {subject.named(fqns)}, {reason}",
                notes=(_SUMMED if sums else _UNREAD,),
                help=help,
            )


def _inside(subject: Subject) -> Mapping[str, Sequence[Module]]:
    """The modules inside each prepared module."""
    inside: dict[str, list[Module]] = {
        fqn: [] for fqn, assignment in subject.bound.styles.items() if assignment.style.prepares
    }
    for module in subject.inventory.modules:
        for fqn in inside.keys() & set(ancestors(module.fqn)):
            inside[fqn].append(module)
    return inside


def _reason(subject: Subject, module: Module, held: Mapping[str, Sequence[Module]]) -> tuple[str, str] | None:
    """(why a module can't take a prepared input, the help). `held` has the modules inside each."""
    inside = held.get(module.fqn, ())
    readers = [one for one in inside if one.parameters and _from_outside(one.sources, module.fqn)]
    if not readers:
        return "in which no layer reads it", _ELSEWHERE
    assignment = subject.bound.styles[module.fqn]
    # Inside, each rank has some of the tokens, with their whole gradient.
    is_sharded = normal(assignment.use.computes_on) == SEQUENCE
    is_summed = _sums_gradients(assignment)
    adds = _from_outside(module.returns, module.fqn) or (module.passes_input and is_summed)
    if adds and not is_sharded:
        return "which adds it to its own output", _ELSEWHERE
    use = assignment.use
    is_moved = "output" in assignment.style.options and normal(use.input) != normal(use.computes_on)
    if module.passes_others and is_moved:
        input_alone = f"prepare_input(input = {use.input}, desired = {use.computes_on})"
        return (
            "which adds another argument to its output, and that one is not prepared",
            f"write {changed(subject, [module.fqn], input_alone)}, and `output = {use.input}` inside",
        )
    if not is_summed:
        # Inside, the gradient is held as the value is, so any module can read it.
        is_several = "output" in assignment.style.options and len(_leaving(subject, module.fqn)) > 1
        return (_SEVERAL, _ELSEWHERE) if is_several else None
    bare = [reader for reader in readers if not _gives_a_part(subject, reader.fqn)]
    if bare:
        names = [one.fqn for one in bare]
        is_plain_linear = all(one.is_linear and one.fqn not in subject.bound.styles for one in bare)
        reason = f"which {subject.named(names)} reads whole"
        if is_plain_linear:
            return reason, f"write {changed(subject, names, 'colwise')}, or leave this rule out"
        both = f"input = {use.input}, desired = {use.computes_on}, output = {use.input}"
        both_ways = changed(subject, [module.fqn], f"prepare_input_output({both})")
        return (
            reason,
            f"write {both_ways}, whose gradient is not summed, and leave out `output = {use.input}` inside",
        )
    # A module that fails by itself has a finding already.
    inner = [
        one.fqn
        for one in inside
        if one.fqn in held
        and _sums_gradients(subject.bound.styles[one.fqn])
        and _reason(subject, one, held) is None
    ]
    if inner:
        prepared = subject.named(inner)
        return f"inside which {prepared} is prepared again", f"leave out this rule, or the rule of {prepared}"
    return None


def _leaving(subject: Subject, fqn: str) -> frozenset[frozenset[str]]:
    """Return the values that leave a module, each as the set of modules inside it that make the value."""
    inside = f"{fqn}."
    values = (
        frozenset(source for source in read if source == fqn or source.startswith(inside))
        for module in subject.inventory.modules
        if module.fqn != fqn and not module.fqn.startswith(inside)
        for read in (module.sources, module.returns)
    )
    return frozenset(filter(None, values))


def _from_outside(sources: Sequence[str], fqn: str) -> bool:
    return any(not source.startswith(f"{fqn}.") for source in sources)


def _gives_a_part(subject: Subject, fqn: str) -> bool:
    """Whether a module's style gives the input this rank's part of its gradient."""
    assignment = subject.bound.styles.get(fqn)
    if assignment is None:
        return False
    return bool(assignment.style.parameters) or assignment.style.reduces_parameter_gradients


def _sums_gradients(assignment: Assignment) -> bool:
    """Whether a style prepares only the input, and sums the gradients that its readers have."""
    style = assignment.style
    is_input = style.prepares and "output" not in style.options
    return is_input and normal(assignment.use.computes_on) != SEQUENCE
