"""The attention modules that are sharded over tp, and the sizes of tp that their heads allow."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from planc.checks.support.rule import Subject
from planc.inventory.schema import Attention
from planc.plan.bind import Assignment
from planc.styles.edges import FEATURES, normal


def divided_attentions(subject: Subject) -> Iterator[tuple[Attention, Assignment]]:
    """(attention, the first of its modules with a part of the heads), in the model's order.

    Projections whose outputs are gathered leave all heads on every rank, however their weights are sharded.
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


def num_heads(subject: Subject) -> int:
    """The number that tp must divide for whole heads on every rank; 0 without a sharded attention."""
    attentions = (attention for attention, _ in divided_attentions(subject))
    return gcd(*(size for one in attentions for size in (one.num_heads, one.num_kv_heads)))
