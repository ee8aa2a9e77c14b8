"""Which attention modules are divided over tp, and which sizes their heads allow."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Subject
from planc.inventory.schema import Attention
from planc.layouts.types import FEATURES, normal
from planc.plan.bind import Assignment


def divided_attentions(subject: Subject) -> Iterator[tuple[Attention, Assignment]]:
    """(attention, the first of its modules that gives or takes a part of the heads), in the model's order.

    Projections whose outputs are gathered leave every rank all heads, however their weights are divided.
    """
    first: dict[str, Assignment | None] = {one.fqn: None for one in subject.inventory.attentions}
    for fqn, assignment in subject.bound.styles.items():
        around = fqn.rpartition(".")[0]
        if around in first and first[around] is None and assignment.parameters:
            edges = (normal(assignment.use.input), normal(assignment.use.output))
            first[around] = assignment if FEATURES in edges else None
    for attention in subject.inventory.attentions:
        if (assigned := first[attention.fqn]) is not None:
            yield attention, assigned


def sizes_for(subject: Subject) -> str:
    """`1, 2 or 4`: the sizes of tp that every divided attention allows."""
    return choices(divisors(num_heads(subject)), near=subject.plan.mesh.tp)


def num_heads(subject: Subject) -> int:
    """What must be divisible by tp for every divided attention to get whole heads; 0 without one."""
    attentions = (attention for attention, _ in divided_attentions(subject))
    return gcd(*(size for one in attentions for size in (one.num_heads, one.num_kv_heads)))
