"""The ends of the residual stream in a model's layers, and the modules that hand on outputs."""

from __future__ import annotations

from collections.abc import Iterator

from planc.inventory.schema import Inventory
from planc.layouts.families import layer_of
from planc.layouts.flow import Flow
from planc.plan.bind import BoundPlan
from planc.styles.edges import normal
from planc.vocab import Placement


def entered_layers(inventory: Inventory) -> tuple[str, ...]:
    """The layers that read values from outside of all layers: the first one, in most models."""
    return tuple(dict.fromkeys(layer for layer, outside in _entries(inventory) if not outside))


def left_layers(inventory: Inventory) -> tuple[str, ...]:
    """The layers whose values are read outside of all layers: the last one, in most models."""
    return tuple(dict.fromkeys(outside for layer, outside in _entries(inventory) if not layer))


def _entries(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """The layers of a reader and of what it reads, where one of them is not in a layer."""
    for module in inventory.modules:
        layer = layer_of(inventory, module.fqn)
        for source in (*module.sources, *module.returns):
            read = layer_of(inventory, source)
            if bool(layer) != bool(read):
                yield layer, read


def handed_on(bound: BoundPlan, flow: Flow, fqn: str) -> Placement | None:
    """The layout that a style redistributes the output to, or that the flow finds; None if unknown."""
    assignment = bound.styles.get(fqn)
    if assignment is not None and assignment.style.prepares:
        return normal(assignment.use.output)
    value = flow.leaving.get(fqn)
    return normal(value.layout) if value is not None and value.layout is not None else None
