"""The flow of activations' gradients: to what a trained parameter reaches, along the recorded data flow.

Autograd keeps nothing, computes nothing and sends nothing for the rest: below the lowest trained parameter
there is no backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from planc.inventory.schema import Inventory, Kind
from planc.record import record
from planc.vocab import ancestors


@record
class GradientFlow:
    """The modules that gradients of activations reach, by name."""

    inputs: frozenset[str]
    """Modules whose input has a gradient."""
    outputs: frozenset[str]
    """Modules whose output has a gradient: backward passes them."""


def everywhere(inventory: Inventory) -> GradientFlow:
    """The flow where every parameter is trained."""
    names = frozenset(("", *inventory.names())) - _passed_over(inventory)
    return GradientFlow(names, names)


def _passed_over(inventory: Inventory) -> frozenset[str]:
    """The modules that the model's own code runs without gradients: none reaches a parameter of theirs."""
    return frozenset(
        module.fqn
        for module in inventory.modules
        if module.parameters and all(own.name in module.unreached for own in module.parameters)
    )


def gradient_flow(inventory: Inventory, *, trained: Set[str], is_stage: bool) -> GradientFlow:
    """The flow from the modules that own a trained parameter.

    `is_stage`: the inventory is a part of a pipeline, whose other stages send it tensors with gradients.
    """
    reached = {*trained, *(_entered(inventory) if is_stage else ())}
    entered = {*_entered(inventory)} if is_stage else set()
    size = -1
    while size != len(reached):
        # Modules follow their sources, so few rounds are needed.
        size = len(reached)
        for module in inventory.modules:
            if not reached.isdisjoint(module.sources):
                entered.add(module.fqn)
                reached.add(module.fqn)
            elif not reached.isdisjoint(module.returns):
                reached.add(module.fqn)
    # What has no recorded input or output of its own has those of what is inside.
    inside = {name for fqn in reached for name in ancestors(fqn)}
    entered.update(_around_entered(inventory, reached))
    reached |= inside - {module.fqn for module in inventory.modules if module.returns}
    idle = _passed_over(inventory)
    return GradientFlow(frozenset(entered - idle), frozenset(reached | {""}) - idle)


def _around_entered(inventory: Inventory, reached: Set[str]) -> Iterator[str]:
    """The modules without a recorded input that hold one which reads from outside of them."""
    recorded = {module.fqn for module in inventory.modules if module.sources}
    for module in inventory.modules:
        sources = [name for name in module.sources if name in reached]
        for around in ancestors(module.fqn) if sources else ():
            if around not in recorded and any(not name.startswith(f"{around}.") for name in sources):
                yield around


def _entered(inventory: Inventory) -> Iterator[str]:
    """The modules of a stage that read what another one sends, or nothing that was recorded."""
    for module in inventory.modules:
        if module.parameters and not module.sources and module.kind is not Kind.EMBEDDING:
            yield module.fqn
