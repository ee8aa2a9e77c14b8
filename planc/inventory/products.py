"""Multiply-adds of a model for one token, in the forward of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planc.inventory.schema import LINEAR_KINDS, Inventory, Kind, Module, Parameter
from planc.vocab import parent_of


def products(inventory: Inventory, sequence_length: int) -> Iterator[tuple[str, int]]:
    """(module, its own multiply-adds).

    Every element of a weight counts once, of experts those of as many as a token gets, and (d_qk + d_v) per
    head of attention for every position of the sequence or the window. Embeddings are looked up, and count
    nothing.
    """
    yield from ((module.fqn, products_of(module)) for module in inventory.modules)
    yield from ((one.fqn, one.products(sequence_length)) for one in inventory.attentions)


def unmeasured_parts(inventory: Inventory) -> tuple[str, ...]:
    """Parts of layers with weights whose code the probe could not run by itself: no formula counts it."""
    owners = {module.fqn for module in inventory.modules if module.parameters}
    routed = {module.fqn for module in inventory.modules if module.routing is not None}
    return tuple(
        module.fqn
        for module in inventory.modules
        if inventory.is_layer(parent_of(module.fqn))
        and module.own_code is None
        and module.kind in (Kind.CONTAINER, Kind.OTHER)
        and any(name.startswith(f"{module.fqn}.") for name in owners)
        and not any(name == module.fqn or name.startswith(f"{module.fqn}.") for name in routed)
    )


def products_of(module: Module) -> int:
    """Multiply-adds of a module's own weights."""
    return sum(products_with(module, parameter) for parameter in module.parameters)


def products_with(module: Module, parameter: Parameter) -> int:
    """Multiply-adds of one own parameter: of a stack, those of the experts that a token gets."""
    if module.kind not in (*LINEAR_KINDS, Kind.OTHER) or len(parameter.shape) < 2:
        return 0
    if module.routing is None:
        return parameter.num_elements
    is_stack = len(parameter.shape) == 3
    return module.routing.experts_per_token * prod(parameter.shape[1:]) * is_stack
