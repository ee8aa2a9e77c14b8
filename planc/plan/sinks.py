"""Attention sinks: a learned score for each head, of a key without a value."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Inventory
from planc.vocab import SINKS


def sinks_of(inventory: Inventory) -> Mapping[str, str]:
    """The parameter that an attention passes as sinks, by the attention's fqn: it has no other of its own."""
    sinks = {}
    for attention in inventory.attentions:
        module = inventory.get(attention.fqn)
        if SINKS not in attention.extras or module is None or len(module.parameters) != 1:
            continue
        (parameter,) = module.parameters
        if parameter.shape == (attention.num_heads,):
            sinks[attention.fqn] = parameter.name
    return sinks
