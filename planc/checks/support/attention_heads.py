"""The attention modules that are sharded over tp, and the sizes of tp that their heads allow."""

from __future__ import annotations

import functools
from math import gcd

from planc.checks.support.rule import Subject
from planc.inventory.schema import Attention, Inventory, OwnHeads
from planc.plan.bind import Assignment
from planc.plan.divided_heads import attention_around
from planc.record import record
from planc.styles.edges import FEATURES, normal
from planc.vocab import parent_of


@record
class AttentionHolders:
    """The attentions that may hold a projection."""

    direct: frozenset[str]
    """They hold their projections themselves."""
    own: frozenset[str]
    """The holders with code of their own: a module inside them may hold the projections."""

    @classmethod
    def of(cls, inventory: Inventory) -> AttentionHolders:
        return cls(
            frozenset(attention.fqn for attention in inventory.attentions),
            frozenset(head.fqn for head in inventory.own_heads),
        )

    def attention_of(self, fqn: str) -> str | None:
        """The attention that a module is a projection of, if it is one."""
        parent = parent_of(fqn)
        return parent if parent in self.direct else attention_around(fqn, self.own)


@functools.lru_cache(maxsize=1)
def divided_attentions(subject: Subject) -> tuple[tuple[Attention | OwnHeads, Assignment], ...]:
    """(attention, the first of its modules with a part of the heads), in the model's order; kept.

    Projections whose outputs are gathered leave all heads on every rank, however their weights are sharded.
    """
    attentions = subject.inventory.known_heads
    first: dict[str, Assignment | None] = {attention.fqn: None for attention in attentions}
    holders = AttentionHolders.of(subject.inventory)
    for fqn, assignment in subject.bound.styles.items():
        around = holders.attention_of(fqn)
        divides = assignment.parameters or assignment.style.shares_heads
        if around is not None and first[around] is None and divides:
            edges = (normal(assignment.use.input), normal(assignment.use.output))
            first[around] = assignment if FEATURES in edges else None
    return tuple(
        (attention, assigned) for attention in attentions if (assigned := first[attention.fqn]) is not None
    )


def num_heads(subject: Subject) -> int:
    """The number that tp must divide for whole heads on every rank; 0 without a sharded attention."""
    attentions = (attention for attention, _ in divided_attentions(subject))
    return gcd(*(size for attention in attentions for size in (attention.num_heads, attention.num_kv_heads)))
