"""A model with adapters, as data: each adapted layer has two linear layers more inside of it.

Stacked experts have two stacks more for each of theirs, with the same first dimension.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Protocol

from planc.inventory.footprint import NOTHING
from planc.inventory.routers import is_dispatchable, num_stacked
from planc.inventory.schema import Draw, Inventory, Kind, Module, Parameter
from planc.record import record
from planc.vocab import (
    DOWN,
    DROP,
    MAGNITUDE,
    UP,
    DropoutDim,
    is_of_experts_adapter,
    outwards,
    parent_of,
)


def is_of_adapter(fqn: str) -> bool:
    """Whether a module is one of an adapter's, by its name."""
    return fqn.rpartition(".")[2] in (DROP, DOWN, UP, MAGNITUDE)


def adapted_layer(parameter: str) -> str | None:
    """The layer whose adapter a parameter belongs to, by its name; None for a parameter of the model."""
    owner = parent_of(parameter)
    if is_of_experts_adapter(parameter):
        return owner
    return parent_of(owner) if is_of_adapter(owner) else None


def is_magnitude(fqn: str) -> bool:
    """Whether a module has the lengths of the rows of an adapted layer's weight, by its name."""
    return fqn.rpartition(".")[2] == MAGNITUDE


def adapted_layers(inventory: Inventory) -> tuple[str, ...]:
    """The layers that have an adapter, in the model's order."""
    names = (adapted_layer(fqn) for fqn, _, _ in inventory.parameters())
    return tuple(dict.fromkeys(name for name in names if name is not None))


def own_stacks(module: Module) -> tuple[Parameter, ...]:
    """The stacks of a module of experts, without adapters'."""
    stacks = (parameter for parameter in module.parameters if len(parameter.shape) == 3)
    return tuple(stack for stack in stacks if not is_of_experts_adapter(stack.name))


def adapted_stacks(inventory: Inventory) -> tuple[str, ...]:
    """The stacks of experts that have an adapter, in the model's order."""
    ends = f"_{DOWN}"
    return tuple(fqn.removesuffix(ends) for fqn, _, _ in inventory.parameters() if fqn.endswith(ends))


@record
class Stack:
    """The weights of all experts for one linear layer: [experts, out, in], or transposed."""

    name: str
    num_experts: int
    num_inputs: int
    num_outputs: int
    is_transposed: bool


def stacks_of(inventory: Inventory, fqn: str) -> tuple[Stack, ...]:
    """The stacks of a module of experts that can have adapters; none for another module.

    Its code must be transformers' interface of experts, which takes the stacks by these names, and does not
    loop over the experts that have tokens.
    """
    module = inventory.get(fqn)
    if module is None or module.reads_values or not is_dispatchable(inventory, module):
        return ()
    stacks = own_stacks(module)
    if tuple(stack.name for stack in stacks) not in _INTERFACES:
        return ()
    (_, *up), (_, *down) = (stack.shape for stack in stacks)
    hidden, number = inventory.hidden_size, num_stacked(module)
    is_plain, is_transposed = (up[1], down[0]) == (hidden,) * 2, (up[0], down[1]) == (hidden,) * 2
    if is_plain is is_transposed:
        return ()
    sizes = (up, down) if is_transposed else (up[::-1], down[::-1])
    return tuple(
        Stack(stack.name, number, num_inputs, num_outputs, is_transposed)
        for stack, (num_inputs, num_outputs) in zip(stacks, sizes, strict=True)
    )


_INTERFACES = (("gate_up_proj", "down_proj"), ("up_proj", "down_proj"))


def can_have_adapter(inventory: Inventory, fqn: str) -> bool:
    """Whether a module is an adaptable linear layer, or adaptable stacked experts."""
    return is_adaptable(inventory, fqn) or bool(stacks_of(inventory, fqn))


def is_adaptable(inventory: Inventory, fqn: str) -> bool:
    """Whether a module can have an adapter: a linear layer of its own whose output nothing else computes."""
    module = inventory.get(fqn)
    if module is None or module.kind is not Kind.LINEAR or module is inventory.head:
        return False
    return not {f"{fqn}.weight"}.intersection(name for tie in inventory.ties for name in tie)


def trained_apart(inventory: Inventory, frozen: Container[str]) -> tuple[str, ...]:
    """The trained parameters that are not adapters' own."""
    names = (fqn for fqn, _, _ in inventory.parameters())
    return tuple(fqn for fqn in names if fqn not in frozen and adapted_layer(fqn) is None)


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
    """The inventory of the model with adapters on these layers, once if it has them."""
    fqns = fqns.difference(adapted_layers(inventory))
    if not fqns:
        return inventory
    modules: list[Module] = []
    for module in inventory.modules:
        if module.fqn not in fqns:
            modules.append(module)
        elif stacks := stacks_of(inventory, module.fqn):
            added = (part for stack in stacks for part in _of_experts(stack, rank=adapter.rank))
            modules.append(replace(module, parameters=(*module.parameters, *added)))
        else:
            modules.extend(_adapted(module, adapter))
    return replace(inventory, modules=tuple(modules))


def _of_experts(stack: Stack, *, rank: int) -> tuple[Parameter, Parameter]:
    """An adapter for each expert: A and B, stacked as the weights are."""
    return (
        Parameter(f"{stack.name}_{DOWN}", (stack.num_experts, rank, stack.num_inputs)),
        Parameter(f"{stack.name}_{UP}", (stack.num_experts, stack.num_outputs, rank)),
    )


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
