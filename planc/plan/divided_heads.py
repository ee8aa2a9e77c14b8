"""The attentions whose heads a plan shards over tp."""

from __future__ import annotations

from collections.abc import Container, Iterator

from planc.inventory.schema import Attention, OwnHeads
from planc.plan.bind import Assignment, BoundPlan
from planc.styles.edges import FEATURES, normal
from planc.vocab import ancestors


def divided_heads(bound: BoundPlan) -> Iterator[tuple[Attention | OwnHeads, Assignment]]:
    """(attention, a projection's style) where projections leave a rank its features, in the model's order."""
    attentions = {attention.fqn: attention for attention in bound.inventory.known_heads}
    seen: set[str] = set()
    for module in bound.inventory.modules if bound.styles else ():
        around = attention_around(module.fqn, attentions) if module.is_linear else None
        if around is None or around in seen:
            continue
        for source in module.sources:
            style = bound.styles.get(source) if source.startswith(f"{around}.") else None
            if style is not None and normal(style.use.output) == FEATURES:
                seen.add(around)
                yield attentions[around], style
                break


def attentions_with_replicated_kv(bound: BoundPlan) -> frozenset[str]:
    """The attentions whose key/value heads several ranks compute."""
    projections = bound.inventory.kv_projections()
    return frozenset(
        projections[fqn][0].fqn
        for fqn, assignment in bound.styles.items()
        if assignment.style.shares_heads and fqn in projections
    )


def attention_around(fqn: str, attentions: Container[str]) -> str | None:
    """The innermost of these attentions that holds a module."""
    return next((name for name in ancestors(fqn) if name in attentions), None)
