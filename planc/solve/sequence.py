"""Sequence parallelism from tensor-parallel rules: the residual stream becomes shards of the sequence.

Every part of a layer then gathers its input and scatters its output. Attention and dense MLPs do so at their
own layers, which turns all-reduces into all-gathers and reduce-scatters. A part in which something reads the
whole input, such as a router, is redistributed around all of it. Where ranks of tp send experts their own
tokens, the router and the experts take shards instead, and shared experts gather at their layers, or take
shards too where tokens no longer have a dimension of the sequence.

The stream is sharded from the embedding to the head, or within the layers alone: code outside of them may
need all tokens, as that of masks for attention of the model's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from planc.inventory.routers import routers
from planc.inventory.schema import Inventory, Kind
from planc.layouts.entry import entered_layers, left_layers
from planc.layouts.families import family, layer_of
from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.solve.containers import Container
from planc.solve.oracle import Actions, Oracle, Refusal
from planc.styles import BY_NAME, Boundary
from planc.styles.edges import FEATURES, SEQUENCE
from planc.vocab import Replicate, parent_of

_WHOLE = Replicate()
_TOKEN_WISE = StyleAction(BY_NAME["sequence_parallel"], Boundary())
_GATHER = StyleAction(BY_NAME["prepare_input"], Boundary(input=SEQUENCE, desired=_WHOLE))
_GATHER_AND_SCATTER = StyleAction(
    BY_NAME["prepare_input_output"], Boundary(input=SEQUENCE, desired=_WHOLE, output=SEQUENCE)
)
_TABLE = StyleAction(BY_NAME["embedding_colwise"], Boundary(output=SEQUENCE))
"""The action for tables of positions and the like, whose code may do more than to look rows up."""
_HEAD = StyleAction(BY_NAME["colwise"], Boundary(input=SEQUENCE, output=FEATURES))


@record
class _Part:
    """A part of a layer, with its rules in the order in which they are tried."""

    name: str
    variants: tuple[Actions, ...]


def with_sequence_parallel(
    oracle: Oracle, containers: Sequence[Container], actions: Actions, inventory: Inventory
) -> tuple[dict[str, StyleAction], Refusal | None]:
    """The rules on shards of the sequence, or why the checks refuse the last that were tried.

    `inventory` is the whole model's, which has more layers than what the oracle judges.
    """
    on_shards = {family(oracle.inventory, fqn) for fqn in oracle.experts_on_shards}
    parts = tuple(_parts(oracle.inventory, containers, actions, on_shards))
    refusal = None
    for outside in (_whole_stream, _within_layers):
        found, refusal = _tried(oracle, parts, outside=dict(outside(oracle.inventory, actions)))
        if refusal is None:
            return {**dict(outside(inventory, actions)), **found}, None
    return {}, refusal


def _tried(
    oracle: Oracle, parts: Sequence[_Part], *, outside: Actions
) -> tuple[dict[str, StyleAction], Refusal | None]:
    """The first rules of all parts that are legal together."""
    tried = dict.fromkeys(range(len(parts)), 0)
    while True:
        chosen: dict[str, StyleAction] = {}
        for number, part in enumerate(parts):
            chosen.update(part.variants[tried[number]])
        refusal = oracle.refusal({**outside, **chosen})
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


def _whole_stream(inventory: Inventory, actions: Actions) -> Iterator[tuple[str, StyleAction]]:
    """Embeddings, norms and the head: what reads and writes the stream itself."""
    head = inventory.head
    yield from _norms(inventory, in_layers=True)
    yield from _norms(inventory, in_layers=False)
    for module in inventory.modules:
        if module.kind is Kind.EMBEDDING and module.parameters and not layer_of(inventory, module.fqn):
            found = actions.get(module.fqn)
            yield module.fqn, StyleAction(found.style, _TABLE.boundary) if found else _TABLE
    if head is not None:
        yield head.fqn, _HEAD


def _within_layers(inventory: Inventory, actions: Actions) -> Iterator[tuple[str, StyleAction]]:
    """The norms in layers, and the layers where the stream is sharded and becomes whole again.

    What is outside of the layers keeps its rules.
    """
    yield from _norms(inventory, in_layers=True)
    yield from ((name, action) for name, action in actions.items() if not layer_of(inventory, name))
    entered, left = entered_layers(inventory), left_layers(inventory)
    for layer in dict.fromkeys((*entered, *left)):
        boundary = Boundary(
            input=_WHOLE if layer in entered else SEQUENCE,
            desired=SEQUENCE,
            output=_WHOLE if layer in left else None,
        )
        yield layer, StyleAction(_GATHER_AND_SCATTER.style if layer in left else _GATHER.style, boundary)


def _norms(inventory: Inventory, *, in_layers: bool) -> Iterator[tuple[str, StyleAction]]:
    """Norms that read the stream: those outside of the layers, or those directly in a layer."""
    for module in inventory.modules:
        layer = layer_of(inventory, module.fqn)
        is_direct = parent_of(module.fqn) == layer if in_layers else not layer
        if module.kind is Kind.NORM and module.parameters and is_direct:
            yield family(inventory, module.fqn), _TOKEN_WISE


def _parts(
    inventory: Inventory, containers: Sequence[Container], actions: Actions, on_shards: Collection[str]
) -> Iterator[_Part]:
    """The direct children of layers. `on_shards` are experts that take shards of the sequence."""
    members: dict[str, list[Container]] = {}
    for container in containers:
        first = next(iter(container.members.values()))
        layer = layer_of(inventory, first.fqn)
        if not layer:
            continue
        names = {_child(inventory, module.fqn) for module in container.members.values()}
        name = family(inventory, next(iter(names)) if len(names) == 1 else layer)
        members.setdefault(name, []).append(container)
    for name in dict.fromkeys((*members, *_untouched(inventory, members))):
        inside = members.get(name, ())
        own = {one: actions[one] for of in inside for one in (*of.members, of.name) if one in actions}
        sharded: dict[str, StyleAction] = {}
        routed = dict(_routed(inventory, name, on_shards))
        for container in inside:
            sharded.update(_at_layers(container, actions, gathers=not routed or container.name != name))
        if routed:
            layers = {fqn: action for fqn, action in sharded.items() if fqn not in on_shards}
            # A shared expert may get tokens without a dimension of the sequence, which nothing could gather.
            yield _Part(name, ({**layers, **routed}, {**dict(_token_wise(inventory, name)), **routed}))
            continue
        variants = [sharded] if sharded else []
        around = next((module for module in inventory.modules if family(inventory, module.fqn) == name), None)
        is_layer = around is not None and layer_of(inventory, around.fqn) == around.fqn
        if around is not None and not is_layer and around.kind in _GATHER_AND_SCATTER.style.kinds:
            variants.append({**own, name: _GATHER_AND_SCATTER})
        if variants:
            yield _Part(name, tuple(variants))


def _routed(inventory: Inventory, part: str, on_shards: Collection[str]) -> Iterator[tuple[str, StyleAction]]:
    """The rules of the routers in a part of a layer whose experts take shards of the sequence."""
    for router in routers(inventory):
        experts = family(inventory, router.experts)
        if experts in on_shards and experts.startswith(f"{part}."):
            yield family(inventory, router.fqn), _TOKEN_WISE


def _token_wise(inventory: Inventory, part: str) -> Iterator[tuple[str, StyleAction]]:
    """The rules by which a part's linear layers and norms are whole on each rank, for its own tokens."""
    for module in inventory.modules:
        name = family(inventory, module.fqn)
        if module.parameters and module.kind in _TOKEN_WISE.style.kinds and name.startswith(f"{part}."):
            yield name, _TOKEN_WISE


def _untouched(inventory: Inventory, members: Collection[str]) -> Iterator[str]:
    """The other children of layers that compute with parameters: a mixture of experts without rules, say."""
    for module in inventory.modules:
        child = _child(inventory, module.fqn) if layer_of(inventory, module.fqn) else ""
        name = family(inventory, child)
        if module.parameters and child and module.kind is not Kind.NORM and name not in members:
            yield name


def _child(inventory: Inventory, fqn: str) -> str:
    """The direct child of a layer that a module is in."""
    layer = layer_of(inventory, fqn)
    return f"{layer}.{fqn[len(layer) + 1 :].partition('.')[0]}"


def _at_layers(container: Container, actions: Actions, *, gathers: bool) -> Iterator[tuple[str, StyleAction]]:
    """The rules with the input gathered for or by the first layers, and the output scattered by the last.

    With `gathers` a rule of the container's own may gather it.
    """
    is_gathered = gathers and container.takes_rule
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
