"""Layers that hold several projections in sequence, and the style that shards each of them."""

from __future__ import annotations

from planc.checks.support.attention_heads import AttentionHolders
from planc.checks.support.rule import Subject
from planc.styles.linear import PACKED_COLWISE, packing_options


def held_widths(subject: Subject, fqn: str) -> tuple[int, ...] | None:
    """The widths of the projections that a linear layer holds; None if that is not known of it.

    Of a projection of an attention the factor test knows them. Elsewhere a layer holds two if all consumers
    take half of its output.
    """
    known = subject.inventory.packed().get(fqn)
    if known is not None or AttentionHolders.of(subject.inventory).attention_of(fqn) is not None:
        return known
    module = subject.inventory.get(fqn)
    assert module is not None, "styles are of modules of this inventory"
    consumers = [one for one in subject.inventory.modules if one.is_linear and fqn in one.sources]
    holds_two = bool(consumers) and all(
        consumer.sources == (fqn,) and 2 * consumer.in_features == module.out_features
        for consumer in consumers
    )
    return (module.out_features // 2,) * 2 if holds_two else None


def packing_style(widths: tuple[int, ...]) -> str:
    """`packed_colwise(parts = 3)`: the style that shards each of these projections."""
    options = packing_options(widths)
    if options.widths is not None:
        return f"{PACKED_COLWISE.name}(widths = [{', '.join(map(str, options.widths))}])"
    return f"{PACKED_COLWISE.name}(parts = {options.parts})" if options.parts else PACKED_COLWISE.name
