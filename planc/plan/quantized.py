"""The linear layers of a frozen base that a plan stores in 4 bits."""

from __future__ import annotations

from collections.abc import Container, Mapping

from planc.inventory.adapters import is_adaptable, is_of_adapter
from planc.inventory.routers import routers
from planc.inventory.schema import Inventory
from planc.plan.adapter import AdaptedBase
from planc.plan.spec import Plan
from planc.source import Span

NF4_BLOCK = 64
"""The inputs of a row that share a scale."""


def quantized_layers(plan: Plan, inventory: Inventory, frozen: Container[str]) -> Mapping[str, Span]:
    """The layers whose weights are stored in 4 bits, in the model's order.

    They are PyTorch's own linear layers whose weights are frozen and read by nothing else: neither the head
    nor a router, nor an adapter's.
    """
    if plan.adapter is None or plan.adapter.base is not AdaptedBase.NF4:
        return {}
    apart = {router.fqn for router in routers(inventory)}.union(inventory.read_by_layers)
    span = plan.span("adapter.base")
    return {
        module.fqn: span
        for module in inventory.modules
        if module.class_name == "Linear"
        and f"{module.fqn}.weight" in frozen
        and module.fqn not in apart
        and is_adaptable(inventory, module.fqn)
        and not is_of_adapter(module.fqn)
    }
