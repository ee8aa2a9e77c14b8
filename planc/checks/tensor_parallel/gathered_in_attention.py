"""Projections that gather the sequence behind their attention's back."""

from __future__ import annotations

from collections.abc import Container, Iterator

from planc.checks.support.clash_report import patterns, size_note
from planc.checks.support.rule import Rule, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.layouts.types import SEQUENCE, WHOLE, normal
from planc.plan.bind import Assignment
from planc.vocab import MeshDim

CODE = Code("P460", "gathered-in-attention", "attention does not see its projections gather the sequence")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule under which modules inside an attention gather what enters it divided."""
    attentions = dict.fromkeys(attention.fqn for attention in subject.inventory.attentions)
    for span, assignments in by_rule(subject):
        gathering = [
            assignment.fqn
            for assignment in assignments
            if _gathers(assignment) and _reads_from_outside(subject, assignment.fqn, attentions)
        ]
        if not gathering:
            continue
        attention = next(fqn for fqn in attentions if gathering[0].startswith(f"{fqn}."))
        (container,) = patterns(subject, [attention])
        yield CODE.at(
            span,
            f"{quoted(patterns(subject, gathering))} gathers the sequence inside `{container}`",
            notes=(
                "attention takes the number of tokens from its own input, here one rank's share of them",
                *size_note(subject, gathering),
            ),
            help=f'gather once, at the attention: `"{container}" -> prepare_input(input = Shard(1), '
            "desired = Replicate())`, and leave `input` out here",
        )


def _gathers(assignment: Assignment) -> bool:
    use = assignment.use
    return normal(use.input) == SEQUENCE and normal(use.computes_on) == WHOLE


def _reads_from_outside(subject: Subject, fqn: str, attentions: Container[str]) -> bool:
    """Whether the module lies in one of the attentions and reads what enters it."""
    module = subject.inventory.get(fqn)
    assert module is not None, "styles are of modules of this inventory"
    around = (fqn[:end] for end, character in enumerate(fqn) if character == ".")
    return any(
        name in attentions and any(not source.startswith(f"{name}.") for source in module.sources)
        for name in around
    )


RULE = Rule(
    (CODE,),
    check,
    over=MeshDim.TP,
    block="tensor_parallel",
    unless=(*TENSOR_PARALLEL_FAULTS, LAYOUTS_DISAGREE),
)
