"""Inventories as JSON text: canonical, one line per distinct module, parsed strictly. No torch here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from planc.inventory.files import parse_json
from planc.inventory.json_values import array_of, error_at, fields_of, from_fields, from_json, to_fields
from planc.inventory.schema import Attention, Inventory, Module, OwnHeads
from planc.inventory.tree import Node, fold, unfold

FORMAT_VERSION = 21
"""11: what activation functions and norms keep. 12: what layers' own code keeps. 13: what gates of experts
keep, gated norms, and code around layers. 14: parameters without gradients. 16: biases of choices. 17: after
which modules nothing is kept, and calls. 18: the rows of each call. 19: types of tokens. 20: outputs
that code alone reads. 21: inputs other than the hidden states of the module around."""

_NOT_AS_FIELDS = ("modules", "attentions", "own_heads", "rope", "router_loss")
"""The first two are a tree, equal heads are together, and config.json has the others."""
_LATER = (
    *("logits", "rope_switch", "positions", "task", "num_labels", "padding_token", "start_token"),
    *("token_types", "new_head", "images"),
)
"""Written after the heads."""


def dumps(inventory: Inventory) -> str:
    """The text of `inventory`: equal inventories give equal texts.

    InventoryError if the modules are not depth first, as registration has them: a tree could not hold their
    order.
    """
    root = fold(inventory.modules, attentions=inventory.attentions)
    if unfold(root) != (inventory.modules, inventory.attentions):
        raise error_at("modules", "not in depth-first order, or an attention is not among them")
    own = to_fields(inventory, without=_NOT_AS_FIELDS)
    later = {key: own.pop(key) for key in _LATER if key in own}
    heads = {"own_heads": _own_heads_fields(inventory.own_heads)} if inventory.own_heads else {}
    fields = {"format_version": FORMAT_VERSION, **own, **heads, **later}
    lines = [f'"{key}":{_compact(value)},' for key, value in fields.items()]
    return "\n".join(["{", *lines, '"modules":', *_node_lines(root, indent=0), "}", ""])


@lru_cache(maxsize=8)  # an editor checks the same plan at each key stroke
def loads(text: str | bytes) -> Inventory:
    """The inventory that `dumps` wrote. InventoryError, naming the place, for anything else."""
    top = fields_of(
        parse_json(text.encode() if isinstance(text, str) else text, name="inventory"),
        "inventory",
        required=("format_version", "modules"),
        optional=None,
    )
    version, tree, heads = top.pop("format_version"), top.pop("modules"), top.pop("own_heads", [])
    if version != FORMAT_VERSION or type(version) is not int:
        raise error_at("format_version", f"this planc reads version {FORMAT_VERSION}")
    try:
        modules, attentions = unfold(_node(tree, "modules"))
    except RecursionError as error:
        raise error_at("modules", "nested too deeply") from error
    given = {"modules": modules, "attentions": attentions, "own_heads": (), "rope": None, "router_loss": None}
    read: Inventory = from_fields(Inventory, top, "inventory", given=given)
    inventory = replace(read, own_heads=_own_heads(heads, order=read.own_attentions))
    _check_references(inventory)
    return inventory


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _node_lines(node: Node, *, indent: int) -> list[str]:
    own = to_fields(node.module, without=("fqn", "class_name"))
    first: dict[str, Any] = {"name": node.module.fqn, "class": node.module.class_name}
    first |= {key: own.pop(key) for key in ("kind", "parameters", "sources", "returns") if key in own}
    if node.attention is not None:
        first["attention"] = to_fields(node.attention, without=("fqn",))
    line = " " * indent + _compact(first | own)
    if not node.children:
        return [line]
    lines = [line[:-1] + ',"children":[']
    for child in node.children:
        lines += _node_lines(child, indent=indent + 1)
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",") + "]}"
    return lines


def _node(value: object, where: str) -> Node:
    fields = dict(fields_of(value, where, required=("name", "class"), optional=None))
    if where == "modules" and fields["name"] != "":
        raise error_at("modules.name", 'the root\'s name is ""')
    children = fields.pop("children", [])
    attention = None
    if "attention" in fields:
        attention = from_fields(Attention, fields.pop("attention"), f"{where}.attention", given={"fqn": ""})
    names = {
        name: from_json(str, fields.pop(key), f"{where}.{key}")
        for name, key in (("fqn", "name"), ("class_name", "class"))
    }
    return Node(
        module=from_fields(Module, fields, where, given=names),
        attention=attention,
        children=array_of(children, f"{where}.children", of=_node),
    )


def _own_heads_fields(own_heads: tuple[OwnHeads, ...]) -> list[dict[str, Any]]:
    """Modules with equal heads together, as most models repeat one layer."""
    same_heads: dict[OwnHeads, list[str]] = {}
    for one in own_heads:
        same_heads.setdefault(replace(one, fqn=""), []).append(one.fqn)
    return [{"modules": fqns, **to_fields(one, without=("fqn",))} for one, fqns in same_heads.items()]


def _own_heads(value: object, *, order: tuple[str, ...]) -> tuple[OwnHeads, ...]:
    """The attentions with their own code, in this order. InventoryError, naming the place, if others are."""
    by_fqn: dict[str, OwnHeads] = {}
    for one in array_of(value, "own_heads", of=lambda item, _: item):
        fields = dict(fields_of(one, "own_heads", required=("modules",), optional=None))
        fqns = array_of(fields.pop("modules"), "own_heads.modules", of=partial(from_json, str))
        heads: OwnHeads = from_fields(OwnHeads, fields, "own_heads", given={"fqn": ""})
        for fqn in fqns:
            if fqn in by_fqn or fqn not in order:
                raise error_at("own_heads", f'"{fqn}" is there twice, or is not in own_attentions')
            by_fqn[fqn] = replace(heads, fqn=fqn)
    return tuple(by_fqn[fqn] for fqn in order if fqn in by_fqn)


def _check_references(inventory: Inventory) -> None:
    modules = {module.fqn for module in inventory.modules}
    for module in inventory.modules:
        for fqn in (*module.sources, *module.returns, *(fqn for one in module.draws for fqn in one.sources)):
            if fqn not in modules:
                raise error_at("modules", f'"{module.fqn}" names "{fqn}", which is not a module')
    for fqn in inventory.blocks:
        if fqn not in modules:
            raise error_at("blocks", f'"{fqn}" is not a module')
    for fqn in (fqn for tie in inventory.ties for fqn in tie):
        module_fqn, _, name = fqn.rpartition(".")
        owner = inventory.get(module_fqn)
        if owner is None or name not in {parameter.name for parameter in owner.parameters}:
            raise error_at("ties", f'"{fqn}" is not a parameter')
