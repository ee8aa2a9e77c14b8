"""Places between modules where the model combines elements, which a layout can break although modules agree.

The recorded data flow has modules, not the tensor operations between them. Attention, recurrences and norms
without weights are missing from it, and are inferred from the containers around them.
"""

from __future__ import annotations

from collections.abc import Container

from planc.inventory.schema import Attention, Inventory, Kind, Module
from planc.record import record
from planc.vocab import outwards, parent_of


@record
class Places:
    """A model's containers by their operations. A mixer is a container that mixes tokens."""

    attentions: dict[str, Attention]
    members: frozenset[str]
    """The members of repeated blocks."""
    recurrent: frozenset[str]
    """Mixers that have no attention."""
    weightless: frozenset[str]
    """Containers, except attentions, that contain a norm without parameters."""
    children: dict[str, tuple[Module, ...]]
    """Recorded modules directly inside modules with parameters of their own."""

    def mixer(self, source: str, consumer: str) -> str | None:
        """The container around two modules that mixes tokens."""
        around = outwards(_common(source, consumer))
        return next((one for one in around if one in self.attentions or one in self.recurrent), None)

    def is_normed(self, source: str, consumer: str) -> bool:
        """Whether a norm without parameters may be between two modules."""
        return bool(self.weightless) and _common(source, consumer) in self.weightless


def places(inventory: Inventory) -> Places:
    """The places of a model."""
    attentions = {attention.fqn: attention for attention in inventory.attentions}
    members = frozenset(inventory.layers())
    children = _children(inventory)
    return Places(
        attentions,
        members,
        recurrent=frozenset(_recurrent(inventory, members, owners=children.keys())),
        weightless=frozenset({parent_of(fqn) for fqn in weightless_norms(inventory)} - attentions.keys()),
        children=children,
    )


def _common(source: str, consumer: str) -> str:
    """The container around both."""
    first, second = source.split(".")[:-1], consumer.split(".")[:-1]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    return ".".join(first[:shared])


def _recurrent(inventory: Inventory, members: frozenset[str], *, owners: Container[str]) -> set[str]:
    """Containers in a block's member, except attention, with a convolution or parameters of their own.

    If a member without attention has none of these, all of its containers count. Those of routed experts
    never do: they take token by token.
    """
    experts = [module.fqn for module in inventory.modules if module.routing is not None]
    routing = {_holder(fqn, members)[0] for fqn in experts}
    odd: dict[str, set[str]] = {member: set() for member in members}
    plain: dict[str, set[str]] = {member: set() for member in members}
    for module in inventory.modules:
        holder, member = _holder(module.fqn, members)
        if holder and module.parameters and holder not in routing:
            is_odd = module.fqn in owners or "Conv" in module.class_name
            (odd if is_odd else plain)[member].add(holder)
    attending: set[str] = set()
    for attention in inventory.attentions:
        holder, member = _holder(attention.fqn, members)
        attending.add(member)
        for known in (odd, plain):
            known.get(member, set()).discard(holder)
    found = set().union(*odd.values())
    return found.union(*(plain[member] for member in members if member not in attending and not odd[member]))


def _holder(fqn: str, members: frozenset[str]) -> tuple[str, str]:
    """(the child of a block's member that is or contains a module, the member); empty outside of blocks."""
    around = ((holder, parent_of(holder)) for holder in outwards(fqn))
    return next(((holder, parent) for holder, parent in around if parent in members), ("", ""))


def weightless_norms(inventory: Inventory) -> frozenset[str]:
    """Norms without parameters, which the inventory lists as empty containers."""
    parents = {parent_of(module.fqn) for module in inventory.modules}
    return frozenset(
        module.fqn
        for module in inventory.modules
        if "Norm" in module.class_name and not module.parameters and module.fqn not in parents
    )


def _children(inventory: Inventory) -> dict[str, tuple[Module, ...]]:
    owners = {module.fqn for module in inventory.modules if module.fqn and module.kind is Kind.OTHER}
    found: dict[str, tuple[Module, ...]] = {}
    for module in inventory.modules:
        parent = parent_of(module.fqn)
        if parent in owners and module.parameters:
            found[parent] = (*found.get(parent, ()), module)
    return found
