"""Inventories as JSON text: canonical, one line per distinct module, parsed strictly. No torch here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from planc.inventory.files import InventoryError, parse_json
from planc.inventory.schema import Inventory, Kind, OwnHeads, Parameter, Positions, Routing
from planc.inventory.tree import AttentionNode, Node, fold, unfold
from planc.vocab import DType

FORMAT_VERSION = 6
"""6: what a model's code does outside of its modules, and to the tokens and rows that they get."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_Value = TypeVar("_Value")


def dumps(inventory: Inventory) -> str:
    """The text of `inventory`: equal inventories give equal texts.

    InventoryError if the modules are not depth first, as registration has them: a tree could not hold their
    order.
    """
    root = fold(inventory.modules, attentions=inventory.attentions)
    if unfold(root) != (inventory.modules, inventory.attentions):
        raise _error("modules", "not in depth-first order, or an attention is not among them")
    fields: dict[str, object] = {
        "format_version": FORMAT_VERSION,
        "config_digest": inventory.config_digest,
        "architecture": inventory.architecture,
        "model_type": inventory.model_type,
        "vocab_size": inventory.vocab_size,
        "hidden_size": inventory.hidden_size,
        "max_positions": inventory.max_positions,
        "ties": inventory.ties,
        "tp_plan": inventory.tp_plan,
        "blocks": inventory.blocks,
    }
    rare = {key: getattr(inventory, key) for key in _RARE_FIELDS}
    fields |= {key: value for key, value in rare.items() if value}
    if inventory.own_heads:
        fields["own_heads"] = _own_heads_fields(inventory.own_heads)
    if inventory.rope_switch is not None:
        fields["rope_switch"] = inventory.rope_switch
    if positions := _position_fields(inventory.positions):
        fields["positions"] = positions
    lines = [f'"{key}":{_compact(value)},' for key, value in fields.items()]
    return "\n".join(["{", *lines, '"modules":', *_node_lines(root, indent=0), "}", ""])


def loads(text: str | bytes) -> Inventory:
    """The inventory that `dumps` wrote. InventoryError, naming the place, for anything else."""
    top = _object(
        parse_json(text.encode() if isinstance(text, str) else text, name="inventory"),
        "inventory",
        required=_FIELDS,
        optional=(*_RARE_FIELDS, "own_heads", "rope_switch", "positions"),
    )
    if (version := top["format_version"]) != FORMAT_VERSION or type(version) is not int:
        raise _error("format_version", f"this planc reads version {FORMAT_VERSION}")
    try:
        modules, attentions = unfold(_node(top["modules"], "modules"))
    except RecursionError as error:
        raise _error("modules", "nested too deeply") from error
    positions = top["max_positions"]
    inventory = Inventory(
        config_digest=_digest(top["config_digest"], "config_digest"),
        architecture=_string(top["architecture"], "architecture"),
        model_type=_string(top["model_type"], "model_type"),
        vocab_size=_positive(top["vocab_size"], "vocab_size"),
        hidden_size=_positive(top["hidden_size"], "hidden_size"),
        max_positions=None if positions is None else _positive(positions, "max_positions"),
        modules=modules,
        attentions=attentions,
        ties=_array(top["ties"], "ties", of=_strings),
        tp_plan=_array(top["tp_plan"], "tp_plan", of=_string_pair),
        blocks=_strings(top["blocks"], "blocks"),
        **{key: _strings(top.get(key, []), key) for key in _RARE_FIELDS},
        own_heads=_own_heads(top.get("own_heads", []), order=_strings(top.get("own_attentions", []), "")),
        rope_switch=_positive(top["rope_switch"], "rope_switch") if "rope_switch" in top else None,
        positions=_positions(top.get("positions", {}), "positions"),
    )
    _check_references(inventory)
    return inventory


_FIELDS = (
    "format_version",
    "config_digest",
    "architecture",
    "model_type",
    "vocab_size",
    "hidden_size",
    "max_positions",
    "ties",
    "tp_plan",
    "blocks",
    "modules",
)


_RARE_FIELDS = (
    *("own_attentions", "written", "reduced", "renumbered", "read_by_layers", "needing_all_tokens"),
    *("random", "added_losses"),
)
"""Lists of names, written only where there are any."""


def _own_heads_fields(own_heads: tuple[OwnHeads, ...]) -> list[dict[str, object]]:
    """Modules with equal heads together, as most models repeat one layer."""
    alike: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for one in own_heads:
        alike.setdefault((one.num_heads, one.num_kv_heads, one.counts), []).append(one.fqn)
    return [dict(zip(_OWN_HEADS_FIELDS, (fqns, *values), strict=True)) for values, fqns in alike.items()]


def _own_heads(value: object, *, order: tuple[str, ...]) -> tuple[OwnHeads, ...]:
    found: dict[str, OwnHeads] = {}
    for one in _array(value, "own_heads", of=lambda item, _: item):
        fields = _object(one, "own_heads", required=_OWN_HEADS_FIELDS)
        for fqn in _strings(fields["modules"], "own_heads.modules"):
            if fqn in found or fqn not in order:
                raise _error("own_heads", f'"{fqn}" is there twice, or is not in own_attentions')
            found[fqn] = OwnHeads(
                fqn,
                _positive(fields["num_heads"], "own_heads.num_heads"),
                _positive(fields["num_kv_heads"], "own_heads.num_kv_heads"),
                _strings(fields["counts"], "own_heads.counts"),
            )
    return tuple(found[fqn] for fqn in order if fqn in found)


_OWN_HEADS_FIELDS = ("modules", "num_heads", "num_kv_heads", "counts")


def _position_fields(positions: Positions) -> dict[str, object]:
    """The fields that differ from their defaults."""
    found = {key: getattr(positions, key) for key in _POSITION_FIELDS}
    return {key: value for key, value in found.items() if value != getattr(Positions(), key)}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _node_lines(node: Node, *, indent: int) -> list[str]:
    fields: dict[str, object] = {"name": node.name, "class": node.class_name, "kind": node.kind}
    if node.parameters:
        fields["parameters"] = {parameter.name: parameter.shape for parameter in node.parameters}
    if node.sources:
        fields["sources"] = node.sources
    if node.returns:
        fields["returns"] = node.returns
    if (attention := node.attention) is not None:
        values = {key: getattr(attention, key) for key in (*_ATTENTION_FIELDS, *_RARE_ATTENTION_FIELDS)}
        fields["attention"] = {
            key: value for key, value in values.items() if value or key not in _RARE_ATTENTION_FIELDS
        }
    if node.unset:
        fields["unset"] = node.unset
    if (routing := node.routing) is not None:
        is_float32 = {"in_float32": True} if routing.in_float32 else {}
        fields["routing"] = {"experts_per_token": routing.experts_per_token, **is_float32}
    if node.flattened:
        fields["flattened"] = True
    if node.own_dtypes:
        fields["own_dtypes"] = dict(node.own_dtypes)
    fields |= {key: names for key in _KEPT_FIELDS if (names := getattr(node, key))}
    own = " " * indent + _compact(fields)
    if not node.children:
        return [own]
    lines = [own[:-1] + ',"children":[']
    for child in node.children:
        lines += _node_lines(child, indent=indent + 1)
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",") + "]}"
    return lines


_ATTENTION_FIELDS = ("num_heads", "num_kv_heads", "head_dim", "window")
_RARE_ATTENTION_FIELDS = ("value_dim", "extras", "fixed_heads", "counts")
"""Written only where they differ from their defaults."""


_KEPT_FIELDS = ("widened", "kept_in_half", "kept_in_float16")
_RARE_NODE_FIELDS = (
    *(
        "parameters",
        "sources",
        "returns",
        "attention",
        "unset",
        "routing",
        "flattened",
        "own_dtypes",
        *_KEPT_FIELDS,
    ),
    "children",
)


def _node(value: object, where: str) -> Node:
    fields = _object(value, where, required=("name", "class", "kind"), optional=_RARE_NODE_FIELDS)
    attention = fields.get("attention")
    return Node(
        name=_root_name(fields["name"]) if where == "modules" else _string(fields["name"], f"{where}.name"),
        class_name=_string(fields["class"], f"{where}.class"),
        kind=_kind(fields["kind"], f"{where}.kind"),
        parameters=_parameters(fields.get("parameters", {}), f"{where}.parameters"),
        sources=_strings(fields.get("sources", []), f"{where}.sources"),
        returns=_strings(fields.get("returns", []), f"{where}.returns"),
        attention=_attention(attention, f"{where}.attention") if "attention" in fields else None,
        unset=_strings(fields.get("unset", []), f"{where}.unset"),
        routing=_routing(fields["routing"], f"{where}.routing") if "routing" in fields else None,
        flattened="flattened" in fields and _true(fields["flattened"], f"{where}.flattened"),
        own_dtypes=_own_dtypes(fields.get("own_dtypes", {}), f"{where}.own_dtypes"),
        widened=_strings(fields.get("widened", []), f"{where}.widened"),
        kept_in_half=_strings(fields.get("kept_in_half", []), f"{where}.kept_in_half"),
        kept_in_float16=_strings(fields.get("kept_in_float16", []), f"{where}.kept_in_float16"),
        children=_array(fields.get("children", []), f"{where}.children", of=_node),
    )


def _root_name(value: object) -> str:
    if value != "":
        raise _error("modules.name", 'the root\'s name is ""')
    return ""


def _kind(value: object, where: str) -> Kind:
    kinds = {kind.value: kind for kind in Kind}
    if (kind := kinds.get(_string(value, where))) is None:
        raise _error(where, f"not one of {', '.join(kinds)}")
    return kind


def _parameters(value: object, where: str) -> tuple[Parameter, ...]:
    if not isinstance(value, dict):
        raise _error(where, "not an object")
    return tuple(
        Parameter(name, _array(shape, f"{where}.{name}", of=_length)) for name, shape in value.items()
    )


def _own_dtypes(value: object, where: str) -> tuple[tuple[str, DType], ...]:
    if not isinstance(value, dict):
        raise _error(where, "not an object")
    dtypes = {dtype.value: dtype for dtype in DType}
    for name, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in dtypes:
            raise _error(f"{where}.{name}", f"not one of {', '.join(dtypes)}")
    return tuple((name, dtypes[dtype]) for name, dtype in value.items())


def _attention(value: object, where: str) -> AttentionNode:
    fields = _object(value, where, required=_ATTENTION_FIELDS, optional=_RARE_ATTENTION_FIELDS)
    window, value_dim = fields["window"], fields.get("value_dim")
    return AttentionNode(
        num_heads=_positive(fields["num_heads"], f"{where}.num_heads"),
        num_kv_heads=_positive(fields["num_kv_heads"], f"{where}.num_kv_heads"),
        head_dim=_positive(fields["head_dim"], f"{where}.head_dim"),
        window=None if window is None else _positive(window, f"{where}.window"),
        value_dim=None if value_dim is None else _positive(value_dim, f"{where}.value_dim"),
        extras=_strings(fields.get("extras", []), f"{where}.extras"),
        fixed_heads=_true(fields["fixed_heads"], f"{where}.fixed_heads")
        if "fixed_heads" in fields
        else False,
        counts=_strings(fields.get("counts", []), f"{where}.counts"),
    )


_POSITION_FIELDS = ("first", "uncounted_token", "counted_by_model")


def _positions(value: object, where: str) -> Positions:
    fields = _object(value, where, required=(), optional=_POSITION_FIELDS)
    uncounted = fields.get("uncounted_token")
    return Positions(
        first=_length(fields.get("first", 0), f"{where}.first"),
        uncounted_token=None if uncounted is None else _length(uncounted, f"{where}.uncounted_token"),
        counted_by_model="counted_by_model" in fields
        and _true(fields["counted_by_model"], f"{where}.counted_by_model"),
    )


def _routing(value: object, where: str) -> Routing:
    fields = _object(value, where, required=("experts_per_token",), optional=("in_float32",))
    return Routing(
        experts_per_token=_positive(fields["experts_per_token"], f"{where}.experts_per_token"),
        in_float32="in_float32" in fields and _true(fields["in_float32"], f"{where}.in_float32"),
    )


def _check_references(inventory: Inventory) -> None:
    modules = {module.fqn for module in inventory.modules}
    for module in inventory.modules:
        for fqn in (*module.sources, *module.returns):
            if fqn not in modules:
                raise _error("modules", f'"{module.fqn}" names "{fqn}", which is not a module')
    for fqn in inventory.blocks:
        if fqn not in modules:
            raise _error("blocks", f'"{fqn}" is not a module')
    for fqn in (fqn for tie in inventory.ties for fqn in tie):
        module_fqn, _, name = fqn.rpartition(".")
        owner = inventory.get(module_fqn)
        if owner is None or name not in {parameter.name for parameter in owner.parameters}:
            raise _error("ties", f'"{fqn}" is not a parameter')


def _object(
    value: object, where: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _error(where, "not an object")
    for key in required:
        if key not in value:
            raise _error(where, f'the key "{key}" is missing')
    for key in value:
        if key not in required and key not in optional:
            raise _error(where, f'unknown key "{key}"')
    return value


def _array(value: object, where: str, *, of: Callable[[object, str], _Value]) -> tuple[_Value, ...]:
    if not isinstance(value, list):
        raise _error(where, "not an array")
    return tuple(of(item, f"{where}[{index}]") for index, item in enumerate(value))


def _strings(value: object, where: str) -> tuple[str, ...]:
    return _array(value, where, of=_string)


def _string_pair(value: object, where: str) -> tuple[str, str]:
    strings = _strings(value, where)
    if len(strings) != 2:
        raise _error(where, "not a pair")
    return strings[0], strings[1]


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _error(where, "not a string")
    return value


def _true(value: object, where: str) -> bool:
    if value is not True:
        raise _error(where, "must be true or absent")
    return True


def _digest(value: object, where: str) -> str:
    if not _DIGEST.fullmatch(digest := _string(value, where)):
        raise _error(where, "not a SHA-256 in hexadecimal")
    return digest


def _length(value: object, where: str) -> int:
    # A bool is an int in Python and would pass isinstance.
    if type(value) is not int or value < 0:
        raise _error(where, "not a whole number")
    return value


def _positive(value: object, where: str) -> int:
    if (number := _length(value, where)) == 0:
        raise _error(where, "not a positive whole number")
    return number


def _error(where: str, message: str) -> InventoryError:
    return InventoryError(f"{where}: {message}", help="write the inventory again: planc inventory DIR --save")
