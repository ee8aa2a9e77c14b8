"""The matrices of a model's hidden layers, and the parts that some of them fuse. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from planc.inventory.routers import num_stacked, routers
from planc.inventory.schema import Inventory, Kind, Module, Parameter
from planc.record import record
from planc.vocab import parent_of

TRANSPOSED = "is stored as [in, out]"
FUSED = "fuses projections that planc can't take apart"
UNKNOWN_STACK = "stacks experts in an unknown order"


_FUSED_NAME = re.compile(r"(qkv\w*|query_key_value|in_proj(_ba)?)$")
"""Layers of mixers whose parts no fact of the inventory has."""


@record
class Matrix:
    """A parameter of one matrix, or of one for each expert, with rows for outputs.

    `widths` are the rows of each part that it fuses, empty for one part. `problem` is why it can't be taken
    apart, if it can't.
    """

    fqn: str
    module: str
    widths: tuple[int, ...] = ()
    problem: str = ""


def matrices(inventory: Inventory) -> Iterator[Matrix]:
    """The weights of linear layers and of stacked experts, but not of the head or of routers."""
    head = inventory.head
    chosen = tuple(routers(inventory))
    apart = {router.fqn for router in chosen} | {head.fqn if head else ""}
    experts = {router.experts for router in chosen}
    experts |= {module.fqn for module in inventory.modules if module.routing and num_stacked(module)}
    packed, gated = inventory.packed(), _gated(inventory)
    by_heads = set(_fused_by_heads(inventory, packed=set(packed)))
    stacks: dict[str, dict[str, Matrix]] = {}
    for fqn, module, parameter in inventory.parameters():
        if module.fqn in apart:
            continue
        if module.fqn in experts:
            known = stacks.setdefault(module.fqn, {item.fqn: item for item in _stacked(inventory, module)})
            yield from (known[fqn],) if fqn in known else ()
        elif module.is_linear and parameter.name == "weight" and len(parameter.shape) == 2:
            widths = packed.get(module.fqn, gated.get(module.fqn, ()))
            problem = (
                FUSED if module.fqn in by_heads or (not widths and _FUSED_NAME.search(module.fqn)) else ""
            )
            problem = TRANSPOSED if module.kind is Kind.CONV1D else problem
            yield Matrix(fqn, module.fqn, widths, problem)


def _gated(inventory: Inventory) -> dict[str, tuple[int, ...]]:
    """The halves of projections to a gate and what it multiplies: the next layer reads half as many
    features."""
    parts: dict[str, tuple[int, ...]] = {}
    for module in inventory.modules:
        source = inventory.get(module.sources[0]) if len(module.sources) == 1 else None
        if not module.is_linear or source is None or not source.is_linear:
            continue
        if source.out_features == 2 * module.in_features:
            parts[source.fqn] = (module.in_features, module.in_features)
    return parts


def _fused_by_heads(inventory: Inventory, *, packed: set[str]) -> Iterator[str]:
    """The only projection of an attention's input to queries, keys and values, if it does not pack these one
    after the other."""
    heads = {item.fqn: (item.num_heads, item.num_kv_heads) for item in inventory.known_heads}
    around = {**dict.fromkeys(inventory.own_attentions, (1, 1)), **heads}
    inside: dict[str, list[Module]] = {fqn: [] for fqn in around}
    for module in inventory.modules:
        parent = parent_of(module.fqn)
        if parent in inside and module.is_linear:
            inside[parent].append(module)
    for fqn, layers in inside.items():
        num_heads, num_kv_heads = around[fqn]
        if len(layers) <= 2:
            for layer in layers:
                is_wide = layer.out_features * num_heads == layer.in_features * (num_heads + 2 * num_kv_heads)
                if is_wide and layer.fqn not in packed:
                    yield layer.fqn


def _stacked(inventory: Inventory, module: Module) -> Iterator[Matrix]:
    """The matrices of stacked experts: [experts, out, in], where the first projection may fuse two."""
    stacks = [item for item in module.parameters if len(item.shape) == 3]
    parts = next(filter(None, (_oriented(inventory, pair) for pair in permutations(stacks))), None)
    for item in stacks:
        fqn = f"{module.fqn}.{item.name}"
        if parts is None:
            yield Matrix(fqn, module.fqn, problem=UNKNOWN_STACK)
        else:
            yield Matrix(fqn, module.fqn, parts[item.name])


def _oriented(inventory: Inventory, stacks: Sequence[Parameter]) -> dict[str, tuple[int, ...]] | None:
    """The widths of an expert's first and last projection; None if their shapes are not in this order."""
    if len(stacks) != 2:
        return None
    (_, rows, inputs), (_, outputs, inner) = (item.shape for item in stacks)
    if (inputs, outputs) != (inventory.hidden_size,) * 2 or rows not in (inner, 2 * inner):
        return None
    return {stacks[0].name: (inner, inner) if rows == 2 * inner else (), stacks[1].name: ()}
