"""A model with the same kinds of layers and fewer of them: rules name families, so depth changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.inventory.schema import Attention, Inventory, Module

_NUM_ALIKE = 2
"""Of each kind of layer: values of one layer reach the next."""


def stand_in(inventory: Inventory) -> Inventory:
    """The inventory without all but two of each kind of layer."""
    dropped = frozenset(_dropped(inventory))
    if not dropped:
        return inventory

    def kept(fqn: str) -> bool:
        return not any(above in dropped for above in _with_containers(fqn))

    def module(one: Module) -> Module:
        return replace(
            one, sources=tuple(filter(kept, one.sources)), returns=tuple(filter(kept, one.returns))
        )

    return replace(
        inventory,
        modules=tuple(module(one) for one in inventory.modules if kept(one.fqn)),
        attentions=tuple(one for one in inventory.attentions if kept(one.fqn)),
        ties=tuple(tie for tie in inventory.ties if all(map(kept, tie))),
        own_attentions=tuple(filter(kept, inventory.own_attentions)),
        written=tuple(filter(kept, inventory.written)),
        reduced=tuple(filter(kept, inventory.reduced)),
    )


def _dropped(inventory: Inventory) -> Iterator[str]:
    """Layers beyond the first two of their kind."""
    attentions = {one.fqn: one for one in inventory.attentions}
    members = {one.fqn: [one] for one in inventory.modules if one.fqn.rpartition(".")[0] in inventory.blocks}
    for one in inventory.modules:
        for above in _with_containers(one.fqn):
            if above in members and above != one.fqn:
                members[above].append(one)
    alike: dict[object, int] = {}
    for layer, inside in members.items():
        kind = (layer.rpartition(".")[0], tuple(_seen_from(layer, one, attentions) for one in inside))
        alike[kind] = alike.get(kind, 0) + 1
        if alike[kind] > _NUM_ALIKE:
            yield layer


def _seen_from(layer: str, module: Module, attentions: dict[str, Attention]) -> object:
    """What decides the rules of a module, whichever layer it is in."""
    attention = attentions.get(module.fqn)
    inner = tuple(one.removeprefix(layer) for one in module.sources if one.startswith(f"{layer}."))
    returned = tuple(one.removeprefix(layer) for one in module.returns if one.startswith(f"{layer}."))
    return (
        module.fqn.removeprefix(layer),
        module.kind,
        module.parameters,
        inner,
        returned,
        replace(attention, fqn="") if attention else None,
    )


def _with_containers(fqn: str) -> Iterator[str]:
    """The name, and those of all modules around it."""
    while fqn:
        yield fqn
        fqn = fqn.rpartition(".")[0]
