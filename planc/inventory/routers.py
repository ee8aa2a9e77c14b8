"""Stacked experts, and the routers that choose among them: facts of an inventory. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from planc.inventory.schema import Inventory, Kind, Module
from planc.record import record


@record
class Router:
    """A module whose weight has a row for each expert of the stacks that it feeds."""

    fqn: str
    experts: str
    num_experts: int
    bias: str = ""
    """The tensor without gradient that is added to scores to choose experts; empty without one."""


def routers(inventory: Inventory) -> Iterator[Router]:
    """One for each module of stacked experts, in the model's order."""
    modules = {module.fqn: module for module in inventory.modules}
    for module in inventory.modules:
        num_experts = num_stacked(module)
        sources = (modules[fqn] for fqn in module.sources if fqn in modules)
        found = next((one for one in sources if num_experts and _chooses(one, num_experts)), None)
        if found is not None:
            yield Router(found.fqn, module.fqn, num_experts, _bias(module))


def has_other_rows(inventory: Inventory, router: Router) -> bool:
    """Whether a router's weight has rows for more than experts, such as shared experts or layers to skip."""
    module = inventory.get(router.fqn)
    assert module is not None, "the router is of this inventory"
    rows = [one.shape[0] for one in module.parameters if len(one.shape) == 2]
    return router.num_experts not in rows


def dispatchable(inventory: Inventory) -> Iterator[Module]:
    """The modules of experts that tokens can be dispatched to, in the model's order."""
    return (module for module in inventory.modules if is_dispatchable(inventory, module))


def is_dispatchable(inventory: Inventory, module: Module) -> bool:
    """Whether a module takes the numbers and weights of each token's experts, and stacks all their weights.

    The first dimension of every parameter is then that of experts.
    """
    number = num_stacked(module) if module.routing is not None else 0
    inside = (inner for inner in inventory.modules if inner.fqn.startswith(f"{module.fqn}."))
    return (
        number > 0
        and all(parameter.shape[:1] == (number,) for parameter in module.parameters)
        and not any(inner.parameters for inner in inside)
    )


def unrouted(inventory: Inventory) -> list[str]:
    """Modules with stacked or routed experts whose router is not known, or which compute all experts."""
    known = {router.experts for router in routers(inventory)}
    return [
        module.fqn
        for module in inventory.modules
        if (module.routing is None) is (module.fqn in known)
        and (module.routing is not None or num_stacked(module))
    ]


def num_stacked(module: Module) -> int:
    """The experts whose weights a module stacks along the first dimension; 0 for another module."""
    stacks = {parameter.shape[0] for parameter in module.parameters if len(parameter.shape) == 3}
    return stacks.pop() if module.kind is Kind.OTHER and len(stacks) == 1 else 0


def _bias(experts: Module) -> str:
    path = experts.routing.bias if experts.routing is not None else ""
    parent = experts.fqn.rpartition(".")[0]
    return f"{parent}.{path}" if parent and path else path


def _chooses(module: Module, num_experts: int) -> bool:
    """Some routers have rows for shared experts too."""
    rows = [parameter.shape[0] for parameter in module.parameters if len(parameter.shape) == 2]
    return any(num_experts <= number <= 2 * num_experts for number in rows)
