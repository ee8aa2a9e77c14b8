"""Sequence parallelism from tensor-parallel rules: the residual stream becomes shards of the sequence.

Every part of a layer then gathers its input and scatters its output. Attention and dense MLPs do so at their
own layers, which turns all-reduces into all-gathers and reduce-scatters. A part in which something reads the
whole input, such as a router, is redistributed around all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planc.inventory.schema import Inventory, Kind
from planc.layouts.families import family
from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.solve.containers import Container, layer_of
from planc.solve.oracle import Actions, Oracle, Refusal
from planc.styles import BY_NAME, Boundary
from planc.styles.edges import FEATURES, SEQUENCE
from planc.vocab import Replicate

_WHOLE = Replicate()
_NORM = StyleAction(BY_NAME["sequence_parallel"], Boundary())
_GATHER = StyleAction(BY_NAME["prepare_input"], Boundary(input=SEQUENCE, desired=_WHOLE))
_GATHER_AND_SCATTER = StyleAction(
    BY_NAME["prepare_input_output"], Boundary(input=SEQUENCE, desired=_WHOLE, output=SEQUENCE)
)
_TABLE = StyleAction(BY_NAME["embedding_colwise"], Boundary(output=SEQUENCE))
"""Of positions and the like, whose code may do more than to look rows up."""
_HEAD = StyleAction(BY_NAME["colwise"], Boundary(input=SEQUENCE, output=FEATURES))


@record
class _Part:
    """A part of a layer, with its rules in the order in which they are tried."""

    name: str
    variants: tuple[Actions, ...]


def with_sequence_parallel(
    oracle: Oracle, containers: Sequence[Container], actions: Actions
) -> tuple[dict[str, StyleAction], Refusal | None]:
    """The rules on shards of the sequence, or why the checks refuse the last that were tried."""
    inventory = oracle.inventory
    fixed = dict(_outside(inventory, actions))
    parts = tuple(_parts(inventory, containers, actions))
    tried = dict.fromkeys(range(len(parts)), 0)
    while True:
        chosen = {**fixed}
        for number, part in enumerate(parts):
            chosen.update(part.variants[tried[number]])
        refusal = oracle.refusal(chosen)
        if refusal is None:
            return chosen, None
        at_fault = next(_at_fault(parts, tried, refusal), None)
        if at_fault is None:
            return {}, refusal
        tried[at_fault] += 1


def _at_fault(parts: Sequence[_Part], tried: Mapping[int, int], refusal: Refusal) -> Iterator[int]:
    """The parts that a refusal is about and that have other rules left."""
    for culprits in refusal.culprits:
        named = culprits.takes | culprits.gives | culprits.is_exact
        for number, part in enumerate(parts):
            is_meant = any(one == part.name or one.startswith(f"{part.name}.") for one in named)
            if is_meant and tried[number] + 1 < len(part.variants):
                yield number


def _outside(inventory: Inventory, actions: Actions) -> Iterator[tuple[str, StyleAction]]:
    """Norms, embeddings and the head: what reads and writes the stream itself."""
    head = inventory.head
    for module in inventory.modules:
        name, layer = family(inventory, module.fqn), layer_of(inventory, module.fqn)
        is_direct = not layer or module.fqn.rpartition(".")[0] == layer
        if not is_direct or not module.parameters:
            continue
        if module.kind is Kind.NORM:
            yield name, _NORM
        elif module.kind is Kind.EMBEDDING and not layer:
            found = actions.get(name)
            yield name, StyleAction(found.style, _TABLE.boundary) if found else _TABLE
        elif head is not None and module.fqn == head.fqn:
            yield name, _HEAD


def _parts(inventory: Inventory, containers: Sequence[Container], actions: Actions) -> Iterator[_Part]:
    """The direct children of layers."""
    members: dict[str, list[Container]] = {}
    for container in containers:
        first = next(iter(container.members.values()))
        layer = layer_of(inventory, first.fqn)
        if not layer:
            continue
        names = {_child(inventory, module.fqn) for module in container.members.values()}
        name = family(inventory, next(iter(names)) if len(names) == 1 else layer)
        members.setdefault(name, []).append(container)
    for name, inside in members.items():
        own = {one: actions[one] for of in inside for one in (*of.members, of.name) if one in actions}
        sharded: dict[str, StyleAction] = {}
        for container in inside:
            sharded.update(_at_layers(container, actions))
        # OPT flattens the tokens of linear layers that are directly in a layer.
        variants = [sharded] if sharded and not _is_layer(inventory, name) else []
        around = next((one for one in inventory.modules if family(inventory, one.fqn) == name), None)
        if around is not None and around.kind in _GATHER_AND_SCATTER.style.kinds:
            variants.append({**own, name: _GATHER_AND_SCATTER})
        if variants:
            yield _Part(name, tuple(variants))


def _is_layer(inventory: Inventory, family: str) -> bool:
    return family.removesuffix(".*") in inventory.blocks


def _child(inventory: Inventory, fqn: str) -> str:
    """The direct child of a layer that a module is in."""
    layer = layer_of(inventory, fqn)
    return f"{layer}.{fqn[len(layer) + 1 :].partition('.')[0]}"


def _at_layers(container: Container, actions: Actions) -> Iterator[tuple[str, StyleAction]]:
    """The rules with the input gathered for or by the first layers, and the output scattered by the last."""
    is_gathered = container.takes_rule
    if is_gathered:
        yield container.name, _GATHER
    for name in container.members:
        action = actions.get(name)
        if action is None:
            continue
        style, boundary = action.style, action.boundary
        if name in container.readers and not is_gathered and "input" in style.options:
            boundary = replace(boundary, input=SEQUENCE)
        if name in container.writers:
            # A gathered output would be whole only to be split again.
            style = BY_NAME["colwise"] if style.name == "colwise_gather_output" else style
            boundary = replace(boundary, output=SEQUENCE) if "output" in style.options else boundary
        yield name, StyleAction(style, boundary)
