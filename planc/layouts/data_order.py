"""The order in which a model computes, from its recorded data flow."""

from __future__ import annotations

from planc.inventory.schema import Inventory, Module


def data_order(inventory: Inventory) -> tuple[tuple[Module, ...], bool]:
    """Recorded modules, each after its sources (Kahn's algorithm), and whether there are loops.

    In a loop, the module that is registered first precedes its sources.
    """
    feeds: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for module in inventory.modules:
        if module.parameters or module.returns or module.sources:
            needed = {fqn for fqn in (*module.sources, *module.returns) if fqn != module.fqn}
            waiting[module.fqn] = len(needed)
            for fqn in needed:
                feeds.setdefault(fqn, []).append(module.fqn)
    ready = [fqn for fqn, count in waiting.items() if count == 0]
    entered, done = set(ready), 0
    has_loops = any(module.fqn in module.sources for module in inventory.modules)
    rest = iter(waiting)
    while len(entered) < len(waiting) or done < len(ready):
        if done == len(ready):
            has_loops = True
            first = next(fqn for fqn in rest if fqn not in entered)
            ready.append(first)
            entered.add(first)
        for consumer in feeds.get(ready[done], ()):
            waiting[consumer] -= 1
            if waiting[consumer] == 0 and consumer not in entered:
                ready.append(consumer)
                entered.add(consumer)
        done += 1
    return tuple(module_of(inventory, fqn) for fqn in ready), has_loops


def module_of(inventory: Inventory, fqn: str) -> Module:
    """A module that the inventory itself names."""
    module = inventory.get(fqn)
    assert module is not None, f"{fqn} is a module of this inventory"
    return module
