"""Groups of modules that are solved together: they pass values to each other inside a layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from planc.inventory.schema import Inventory, Kind, Module
from planc.layouts.families import families, family, layer_of
from planc.plan.auto import Automatic
from planc.plan.bind import bind
from planc.plan.parameters import own_placements
from planc.plan.spec import Plan
from planc.record import record
from planc.vocab import outwards, parent_of


@record
class Container:
    """Families of modules that are solved together, each with one of its modules."""

    name: str
    members: Mapping[str, Module]
    readers: frozenset[str]
    """The modules that read the container's input."""
    writers: frozenset[str]
    """The modules whose output leaves the container."""
    behind_heads: frozenset[str]
    """The modules that read what an attention computes."""
    takes_rule: bool
    """Whether a rule can be about the container itself, and prepare its input."""
    head: str = ""


def containers(plan: Plan, inventory: Inventory) -> Iterator[Container]:
    """Yield the containers in the order of the model; what is outside of layers comes last."""
    members = _members(plan, inventory)
    head = inventory.head
    groups = sorted(_connected(inventory, members), key=lambda group: not layer_of(inventory, group[0]))
    for names in groups:
        group = {name: members[name] for name in names}
        if any(module.kind is not Kind.NORM for module in group.values()):
            yield _container(inventory, group, head=head.fqn if head else "")


def _members(plan: Plan, inventory: Inventory) -> dict[str, Module]:
    """Each family of modules that needs a style, with its first module."""
    spec = plan.tensor_parallel
    fixed = bind(plan, inventory, Automatic()).styles if spec and spec.rules else {}
    placed = own_placements(inventory)
    members: dict[str, Module] = {}
    for module in inventory.modules:
        if module.fqn not in fixed and _is_open(inventory, module, placed=module.fqn in placed):
            members.setdefault(family(inventory, module.fqn), module)
    if spec and spec.auto and spec.auto.sequence_parallel:
        # A module has one style: that of an attention or the like gathers the tokens for all inside it.
        return {
            one: members[one] for one in members if not any(other.startswith(f"{one}.") for other in members)
        }
    return members


def _connected(inventory: Inventory, members: Collection[str]) -> list[list[str]]:
    """Families that pass values to each other inside a layer; those outside of layers are one group."""
    group_of = {member: [member] for member in members}

    def join(first: str, second: str) -> None:
        if group_of[first] is not group_of[second]:
            group_of[first].extend(group_of[second])
            group_of.update(dict.fromkeys(group_of[second], group_of[first]))

    for module in inventory.modules:
        layer = layer_of(inventory, module.fqn)
        if any(layer_of(inventory, source) != layer for source in module.sources):
            # It reads the residual stream, whatever the layer has added to it.
            continue
        reader, givers = family(inventory, module.fqn), families(inventory, module.sources)
        # What is added to a value without a style, such as a norm's output, is whole as that is.
        if reader in group_of and all(giver in group_of for giver in givers):
            for giver in givers:
                join(giver, reader)
    for name in members:
        # Parameters of an attention itself, one number per head say, are sharded as its projections are.
        for inside in members:
            if inside.startswith(f"{name}."):
                join(name, inside)
    outside = [member for member in members if not layer_of(inventory, member)]
    for name in outside[1:]:
        join(outside[0], name)
    order = {one: place for place, one in enumerate(members)}
    groups = {id(group): sorted(group, key=order.__getitem__) for group in group_of.values()}
    return list(groups.values())


def _container(inventory: Inventory, members: Mapping[str, Module], *, head: str) -> Container:
    name = _around(tuple(members))
    around = next((module for module in inventory.modules if family(inventory, module.fqn) == name), None)
    readers = [
        one
        for one, module in members.items()
        if module.sources
        and not any(family(inventory, source) in members for source in module.sources)
        and not any(family(inventory, container) == name for container in module.bypassed_containers)
    ]
    is_layer = around is not None and inventory.is_layer(around.fqn)
    takes_rule = around is not None and around.kind is Kind.CONTAINER and not (is_layer or name in members)
    read = {family(inventory, source) for module in members.values() for source in module.sources}
    return Container(
        name=name,
        members=members,
        readers=frozenset(readers),
        writers=frozenset(member for member in members if member not in read),
        behind_heads=_behind_heads(inventory, members),
        takes_rule=takes_rule,
        head=head,
    )


def _around(families: Sequence[str]) -> str:
    """The innermost module around all of them, which may be one of them."""
    parts = [one.split(".") for one in families]
    parts = [part[:-1] for part in parts] if len(parts) == 1 else parts
    shared = 0
    while all(len(part) > shared and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return ".".join(parts[0][:shared])


def _is_open(inventory: Inventory, module: Module, *, placed: bool) -> bool:
    """Whether a module needs a style."""
    in_layer = bool(layer_of(inventory, module.fqn))
    match module.kind:
        case Kind.LINEAR | Kind.CONV1D:
            head = inventory.head
            return in_layer or (head is not None and module.fqn == head.fqn)
        case Kind.NORM:
            # Others are on the residual stream.
            return in_layer and _is_beside_linear(inventory, module.fqn)
        case Kind.OTHER:
            return placed
        case Kind.EMBEDDING:
            # Others are small, and looked up by what ranks may not share.
            return not in_layer and inventory.holds_tokens(module)
        case _:
            return False


def _is_beside_linear(inventory: Inventory, fqn: str) -> bool:
    """Whether a module is in an attention, an MLP or the like, and not in the layer around them."""
    parent = parent_of(fqn)
    siblings = (module for module in inventory.modules if parent_of(module.fqn) == parent)
    return parent != layer_of(inventory, fqn) and any(sibling.is_linear for sibling in siblings)


def _behind_heads(inventory: Inventory, members: Mapping[str, Module]) -> frozenset[str]:
    """Linear layers inside an attention whose output leaves it."""
    attentions = {*inventory.own_attentions, *(attention.fqn for attention in inventory.attentions)}
    around = {module.fqn: _attention(module.fqn, attentions) for module in inventory.modules}
    read = {
        source
        for module in inventory.modules
        for source in module.sources
        if around.get(source) == around[module.fqn]
    }
    return frozenset(
        one
        for one, module in members.items()
        if module.is_linear and around[module.fqn] and module.fqn not in read
    )


def _attention(fqn: str, attentions: Collection[str]) -> str:
    """The attention around a module."""
    return next((name for name in outwards(fqn) if name in attentions), "")
