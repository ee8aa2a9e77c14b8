"""A model with adapters, as data: each adapted layer has two linear layers more inside of it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Protocol

from planc.inventory.footprint import NOTHING
from planc.inventory.schema import Draw, Inventory, Kind, Module, Parameter
from planc.vocab import DOWN, DROP, MAGNITUDE, UP, DropoutDim, outwards, parent_of


def is_of_adapter(fqn: str) -> bool:
    """Whether a module is one of an adapter's, by its name."""
    return fqn.rpartition(".")[2] in (DROP, DOWN, UP, MAGNITUDE)


def is_magnitude(fqn: str) -> bool:
    """Whether a module has the lengths of the rows of an adapted layer's weight, by its name."""
    return fqn.rpartition(".")[2] == MAGNITUDE


def adapted_layers(inventory: Inventory) -> tuple[str, ...]:
    """The layers that have an adapter, in the model's order."""
    ends = f".{DOWN}"
    return tuple(fqn.removesuffix(ends) for fqn in inventory.names() if fqn.endswith(ends))


def is_adaptable(inventory: Inventory, fqn: str) -> bool:
    """Whether a module can have an adapter: a linear layer of its own whose output nothing else computes."""
    module = inventory.get(fqn)
    if module is None or module.kind is not Kind.LINEAR or module is inventory.head:
        return False
    return not {f"{fqn}.weight"}.intersection(name for tie in inventory.ties for name in tie)


def trained_apart(inventory: Inventory, frozen: Container[str]) -> tuple[str, ...]:
    """The trained parameters that are not adapters' own."""
    parameters = inventory.parameters()
    return tuple(fqn for fqn, module, _ in parameters if fqn not in frozen and not is_of_adapter(module.fqn))


def not_saved_apart(inventory: Inventory, parameter: str) -> str | None:
    """The reason why peft can't save a parameter with its module; None if it can.

    It copies the module, and finds it by the end of its name.
    """
    owner = parent_of(parameter)
    if any(parameter in tie for tie in inventory.ties):
        return "is shared, and would have two values"
    if any(owner in outwards(layer) for layer in adapted_layers(inventory)):
        return "is in a module with adapters"
    if any(fqn != owner and fqn.endswith(owner) for fqn in inventory.names()):
        return "is found by the end of its module's name, which other modules have"
    return None


def saved_apart(inventory: Inventory, frozen: Container[str]) -> tuple[str, ...]:
    """The trained parameters that peft saves with their modules, next to the adapters."""
    names = trained_apart(inventory, frozen)
    return tuple(name for name in names if not_saved_apart(inventory, name) is None)


class Adapter(Protocol):
    """The settings of adapters that decide which modules a layer gets."""

    @property
    def rank(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def dora(self) -> bool: ...


def with_adapters(inventory: Inventory, fqns: frozenset[str], adapter: Adapter) -> Inventory:
    """The inventory of the model with adapters on these linear layers, once if it has them."""
    fqns = fqns.difference(adapted_layers(inventory))
    if not fqns:
        return inventory
    modules = (
        part
        for module in inventory.modules
        for part in (_adapted(module, adapter) if module.fqn in fqns else (module,))
    )
    return replace(inventory, modules=tuple(modules))


def _adapted(module: Module, adapter: Adapter) -> Iterator[Module]:
    """The layer and its adapter, whose output reaches the layer's."""
    down, up = f"{module.fqn}.{DOWN}", f"{module.fqn}.{UP}"
    magnitude = (f"{module.fqn}.{MAGNITUDE}",) if adapter.dora else ()
    yield replace(module, returns=(*module.returns, up, *magnitude))
    entering = module.sources
    if adapter.dropout:
        dims = (DropoutDim.BATCH, DropoutDim.SEQUENCE, module.in_features)
        draw, drop = Draw(adapter.dropout, dims, entering), f"{module.fqn}.{DROP}"
        yield Module(drop, "Dropout", Kind.CONTAINER, sources=entering, draws=(draw,))
        entering = (drop,)
    for fqn, shape, sources in (
        (down, (adapter.rank, module.in_features), entering),
        (up, (module.out_features, adapter.rank), (down,)),
    ):
        weight = Parameter("weight", shape)
        ends = module.ends + 1 if fqn == up and not magnitude else 0
        yield Module(fqn, "Linear", Kind.LINEAR, (weight,), sources=sources, activation=NOTHING, ends=ends)
    for fqn in magnitude:
        yield Module(fqn, "Magnitude", Kind.OTHER, (Parameter("weight", (module.out_features,)),), (up,))


def without_adapters(inventory: Inventory) -> Inventory:
    """The inventory of the model itself."""
    layers = adapted_layers(inventory)
    if not layers:
        return inventory
    own = {f"{fqn}.{part}" for fqn in layers for part in (UP, MAGNITUDE)}
    modules = (
        replace(module, returns=tuple(fqn for fqn in module.returns if fqn not in own))
        for module in inventory.modules
        if not is_of_adapter(module.fqn)
    )
    return replace(inventory, modules=tuple(modules))
