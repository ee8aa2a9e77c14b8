"""Projections that gather the sequence or the batch inside attention."""

from __future__ import annotations

from collections.abc import Container

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.layouts_disagree import CODE as LAYOUTS_DISAGREE
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code
from planc.layouts.types import WHOLE
from planc.plan.bind import Assignment
from planc.styles.edges import BATCH, SEQUENCE, normal
from planc.vocab import MeshDim

CODE = Code("P460", "gathered-in-attention", "attention gets the sizes of a shard")


@reports(CODE, over=MeshDim.TP, block="tensor_parallel", unless=(*TENSOR_PARALLEL_FAULTS, LAYOUTS_DISAGREE))
def check(subject: Subject) -> Findings:
    """One finding for each rule by which projections gather the tokens that an attention has a shard of."""
    attentions = dict.fromkeys(attention.fqn for attention in subject.inventory.known_heads)
    for span, assignments in by_rule(subject):
        gathering = [
            assignment.fqn
            for assignment in assignments
            if _gathers(assignment) and _reads_from_outside(subject, assignment.fqn, attentions)
        ]
        if not gathering:
            continue
        attention = next(fqn for fqn in attentions if gathering[0].startswith(f"{fqn}."))
        (container,) = subject.patterns([attention])
        arriving = normal(subject.bound.styles[gathering[0]].use.input)
        what = "sequence" if arriving == SEQUENCE else "batch"
        yield CODE.at(
            span,
            f"{subject.named(gathering)} gathers the {what} inside `{container}`",
            notes=(
                f"the projections gather the full {what}; attention takes its size from its own input",
                *subject.size_note(gathering),
            ),
            help=f'gather the input of attention: write `"{container}" -> prepare_input(input = {arriving}, '
            "desired = Replicate())`, and leave out `input` here",
        )


def _gathers(assignment: Assignment) -> bool:
    use = assignment.use
    return normal(use.input) in (SEQUENCE, BATCH) and normal(use.computes_on) == WHOLE


def _reads_from_outside(subject: Subject, fqn: str, attentions: Container[str]) -> bool:
    """Whether the module is inside one of the attentions and reads its input."""
    module = subject.inventory.get(fqn)
    assert module is not None, "styles are of modules of this inventory"
    around = (fqn[:end] for end, character in enumerate(fqn) if character == ".")
    return any(
        name in attentions and any(not source.startswith(f"{name}.") for source in module.sources)
        for name in around
    )
