"""A model with the same kinds of layers and fewer of them: rules name families, so depth changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.inventory.schema import Attention, Inventory, Module
from planc.layouts.entry import left_layers
from planc.vocab import outwards

NUM_ALIKE = 2
"""The number of layers of each kind: values of one layer reach the next."""


def stand_in(inventory: Inventory, *, num_alike: int = NUM_ALIKE) -> Inventory:
    """The inventory without all but a few of each kind of layer, and those behind which the layers end.

    What reads a layer that is left out reads the last of its kind that is not.
    """
    replaced = dict(_replaced(inventory, num_alike))
    if not replaced:
        return inventory

    def kept(fqn: str) -> bool:
        return not any(above in replaced for above in outwards(fqn))

    def renamed(fqn: str) -> str:
        layer = next((above for above in outwards(fqn) if above in replaced), None)
        return fqn if layer is None else replaced[layer] + fqn.removeprefix(layer)

    def module(one: Module) -> Module:
        sources, returns = (tuple(dict.fromkeys(map(renamed, read))) for read in (one.sources, one.returns))
        return replace(one, sources=sources, returns=returns)

    return replace(
        inventory,
        modules=tuple(module(one) for one in inventory.modules if kept(one.fqn)),
        attentions=tuple(attention for attention in inventory.attentions if kept(attention.fqn)),
        ties=tuple(tie for tie in inventory.ties if all(map(kept, tie))),
        own_attentions=tuple(filter(kept, inventory.own_attentions)),
        written=tuple(filter(kept, inventory.written)),
        reduced=tuple(filter(kept, inventory.reduced)),
    )


def num_kinds(inventory: Inventory) -> int:
    """The kinds of layers that differ in more than their place."""
    return len(_alike(inventory))


def _replaced(inventory: Inventory, num_alike: int) -> Iterator[tuple[str, str]]:
    """Layers beyond the first few of their kind, each with the last of those."""
    last = left_layers(inventory)
    for layers in _alike(inventory).values():
        kept = layers[:num_alike]
        yield from ((layer, kept[-1]) for layer in layers[num_alike:] if layer not in last)


def _alike(inventory: Inventory) -> dict[object, list[str]]:
    """The layers of each kind, in order."""
    attentions = {attention.fqn: attention for attention in inventory.attentions}
    members = {
        module.fqn: [module]
        for module in inventory.modules
        if module.fqn.rpartition(".")[0] in inventory.blocks
    }
    for one in inventory.modules:
        for above in outwards(one.fqn):
            if above in members and above != one.fqn:
                members[above].append(one)
    found: dict[object, list[str]] = {}
    for layer, inside in members.items():
        kind = (layer.rpartition(".")[0], tuple(_seen_from(layer, one, attentions) for one in inside))
        found.setdefault(kind, []).append(layer)
    return found


def _seen_from(layer: str, module: Module, attentions: dict[str, Attention]) -> object:
    """What decides the rules of a module and what it keeps, whichever layer it is in."""
    attention = attentions.get(module.fqn)
    inner = tuple(source.removeprefix(layer) for source in module.sources if source.startswith(f"{layer}."))
    returned = tuple(one.removeprefix(layer) for one in module.returns if one.startswith(f"{layer}."))
    return (
        module.fqn.removeprefix(layer),
        module.kind,
        module.parameters,
        inner,
        returned,
        replace(attention, fqn="") if attention else None,
        (module.activation, module.footprint, module.own_code, module.eager_code),
    )
