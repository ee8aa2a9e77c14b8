"""Inventories as JSON text: canonical, one line per distinct module, parsed strictly. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite

from planc.inventory.draw_fields import draw_fields, draws_from
from planc.inventory.files import parse_json
from planc.inventory.footprint import ONE_OPERATION, RMS_NORM, Footprint, OwnCode
from planc.inventory.head_fields import (
    SHARING_FIELDS,
    own_heads_fields,
    own_heads_from,
    sharing_fields,
    sharing_from,
)
from planc.inventory.json_values import (
    array_of,
    digest_of,
    error_at,
    fields_of,
    items_of,
    length_of,
    pair_of,
    positive_of,
    string_of,
    strings_of,
    true_of,
)
from planc.inventory.schema import Inventory, Kind, Parameter, Positions, Routing
from planc.inventory.tree import AttentionNode, Node, fold, unfold
from planc.vocab import DType, LogitsFunction, LogitsStep

FORMAT_VERSION = 14
"""11: what activation functions and norms keep. 12: what layers' own code keeps. 13: what gates of experts
keep, gated norms, and code around layers. 14: parameters without gradients."""


def dumps(inventory: Inventory) -> str:
    """The text of `inventory`: equal inventories give equal texts.

    InventoryError if the modules are not depth first, as registration has them: a tree could not hold their
    order.
    """
    root = fold(inventory.modules, attentions=inventory.attentions)
    if unfold(root) != (inventory.modules, inventory.attentions):
        raise error_at("modules", "not in depth-first order, or an attention is not among them")
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
        fields["own_heads"] = own_heads_fields(inventory.own_heads)
    if inventory.logits != ():
        fields["logits"] = inventory.logits and [[one.function, one.by] for one in inventory.logits]
    if inventory.rope_switch is not None:
        fields["rope_switch"] = inventory.rope_switch
    if positions := _position_fields(inventory.positions):
        fields["positions"] = positions
    lines = [f'"{key}":{_compact(value)},' for key, value in fields.items()]
    return "\n".join(["{", *lines, '"modules":', *_node_lines(root, indent=0), "}", ""])


def loads(text: str | bytes) -> Inventory:
    """The inventory that `dumps` wrote. InventoryError, naming the place, for anything else."""
    top = fields_of(
        parse_json(text.encode() if isinstance(text, str) else text, name="inventory"),
        "inventory",
        required=_FIELDS,
        optional=(*_RARE_FIELDS, "own_heads", "logits", "rope_switch", "positions"),
    )
    if (version := top["format_version"]) != FORMAT_VERSION or type(version) is not int:
        raise error_at("format_version", f"this planc reads version {FORMAT_VERSION}")
    try:
        modules, attentions = unfold(_node(top["modules"], "modules"))
    except RecursionError as error:
        raise error_at("modules", "nested too deeply") from error
    positions = top["max_positions"]
    inventory = Inventory(
        config_digest=digest_of(top["config_digest"], "config_digest"),
        architecture=string_of(top["architecture"], "architecture"),
        model_type=string_of(top["model_type"], "model_type"),
        vocab_size=positive_of(top["vocab_size"], "vocab_size"),
        hidden_size=positive_of(top["hidden_size"], "hidden_size"),
        max_positions=None if positions is None else positive_of(positions, "max_positions"),
        modules=modules,
        attentions=attentions,
        ties=array_of(top["ties"], "ties", of=strings_of),
        tp_plan=array_of(top["tp_plan"], "tp_plan", of=pair_of),
        blocks=strings_of(top["blocks"], "blocks"),
        **{key: strings_of(top.get(key, []), key) for key in _RARE_FIELDS},
        own_heads=own_heads_from(
            top.get("own_heads", []), order=strings_of(top.get("own_attentions", []), "")
        ),
        logits=_logits(top.get("logits", []), "logits"),
        rope_switch=positive_of(top["rope_switch"], "rope_switch") if "rope_switch" in top else None,
        positions=_positions(top.get("positions", {}), "positions"),
        rope=None,
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
    *("random", "random_weights", "random_others", "added_losses"),
)
"""Lists of names, written only where there are any."""


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
            **{key: value for key, value in values.items() if value or key not in _RARE_ATTENTION_FIELDS},
            **sharing_fields(attention),
        }
    fields |= {key: names for key in _NAME_FIELDS if (names := getattr(node, key))}
    if (routing := node.routing) is not None:
        is_float32 = {"in_float32": True} if routing.in_float32 else {}
        fields["routing"] = {"experts_per_token": routing.experts_per_token, **is_float32}
    if node.flattened:
        fields["flattened"] = True
    if node.passes_input:
        fields["passes_input"] = True
    if node.passes_others:
        fields["passes_others"] = True
    if node.own_dtypes:
        fields["own_dtypes"] = dict(node.own_dtypes)
    if node.draws:
        fields["draws"] = draw_fields(node.draws)
    for key, usual in _FOOTPRINTS.items():
        if (footprint := getattr(node, key)) != usual:
            fields[key] = {"kept": footprint.kept, "passing": footprint.passing}
    for key in _CODES:
        if (code := getattr(node, key)) is not None:
            fields[key] = {"by_token": code.by_token, "by_pair": code.by_pair}
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


_FOOTPRINTS = {"activation": ONE_OPERATION, "footprint": RMS_NORM}
_CODES = "own_code", "eager_code"
_NAME_FIELDS = ("unset", "frozen", "unreached", "widened", "kept_in_half", "kept_in_float16")
_RARE_NODE_FIELDS = (
    *(
        "parameters",
        "sources",
        "returns",
        "attention",
        "routing",
        "flattened",
        "passes_input",
        "passes_others",
        "own_dtypes",
        *_NAME_FIELDS,
        "draws",
        *_FOOTPRINTS,
        *_CODES,
    ),
    "children",
)


def _is_set(fields: Mapping[str, object], name: str, where: str) -> bool:
    """Whether a field is there, which is true or absent."""
    return name in fields and true_of(fields[name], f"{where}.{name}")


def _node(value: object, where: str) -> Node:
    fields = fields_of(value, where, required=("name", "class", "kind"), optional=_RARE_NODE_FIELDS)
    attention = fields.get("attention")
    return Node(
        name=_root_name(fields["name"]) if where == "modules" else string_of(fields["name"], f"{where}.name"),
        class_name=string_of(fields["class"], f"{where}.class"),
        kind=_kind(fields["kind"], f"{where}.kind"),
        parameters=_parameters(fields.get("parameters", {}), f"{where}.parameters"),
        sources=strings_of(fields.get("sources", []), f"{where}.sources"),
        returns=strings_of(fields.get("returns", []), f"{where}.returns"),
        attention=_attention(attention, f"{where}.attention") if "attention" in fields else None,
        routing=_routing(fields["routing"], f"{where}.routing") if "routing" in fields else None,
        flattened=_is_set(fields, "flattened", where),
        passes_input=_is_set(fields, "passes_input", where),
        passes_others=_is_set(fields, "passes_others", where),
        own_dtypes=_own_dtypes(fields.get("own_dtypes", {}), f"{where}.own_dtypes"),
        **{key: strings_of(fields.get(key, []), f"{where}.{key}") for key in _NAME_FIELDS},
        draws=draws_from(fields.get("draws", []), f"{where}.draws"),
        activation=_footprint(fields, "activation", where),
        footprint=_footprint(fields, "footprint", where),
        own_code=_own_code(fields, "own_code", where),
        eager_code=_own_code(fields, "eager_code", where),
        children=array_of(fields.get("children", []), f"{where}.children", of=_node),
    )


def _root_name(value: object) -> str:
    if value != "":
        raise error_at("modules.name", 'the root\'s name is ""')
    return ""


def _kind(value: object, where: str) -> Kind:
    kinds = {kind.value: kind for kind in Kind}
    if (kind := kinds.get(string_of(value, where))) is None:
        raise error_at(where, f"not one of {', '.join(kinds)}")
    return kind


def _parameters(value: object, where: str) -> tuple[Parameter, ...]:
    if not isinstance(value, dict):
        raise error_at(where, "not an object")
    return tuple(
        Parameter(name, array_of(shape, f"{where}.{name}", of=length_of)) for name, shape in value.items()
    )


def _own_dtypes(value: object, where: str) -> tuple[tuple[str, DType], ...]:
    if not isinstance(value, dict):
        raise error_at(where, "not an object")
    dtypes = {dtype.value: dtype for dtype in DType}
    for name, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in dtypes:
            raise error_at(f"{where}.{name}", f"not one of {', '.join(dtypes)}")
    return tuple((name, dtypes[dtype]) for name, dtype in value.items())


def _attention(value: object, where: str) -> AttentionNode:
    optional = (*_RARE_ATTENTION_FIELDS, *SHARING_FIELDS)
    fields = fields_of(value, where, required=_ATTENTION_FIELDS, optional=optional)
    window, value_dim = fields["window"], fields.get("value_dim")
    packed, per_head, shared_kv = sharing_from(fields, where)
    return AttentionNode(
        num_heads=positive_of(fields["num_heads"], f"{where}.num_heads"),
        num_kv_heads=positive_of(fields["num_kv_heads"], f"{where}.num_kv_heads"),
        head_dim=positive_of(fields["head_dim"], f"{where}.head_dim"),
        window=None if window is None else positive_of(window, f"{where}.window"),
        value_dim=None if value_dim is None else positive_of(value_dim, f"{where}.value_dim"),
        extras=strings_of(fields.get("extras", []), f"{where}.extras"),
        fixed_heads=true_of(fields["fixed_heads"], f"{where}.fixed_heads")
        if "fixed_heads" in fields
        else False,
        counts=strings_of(fields.get("counts", []), f"{where}.counts"),
        packed=packed,
        per_head=per_head,
        shared_kv=shared_kv,
    )


_POSITION_FIELDS = ("first", "uncounted_token", "counted_by_model")


def _positions(value: object, where: str) -> Positions:
    fields = fields_of(value, where, required=(), optional=_POSITION_FIELDS)
    uncounted = fields.get("uncounted_token")
    return Positions(
        first=length_of(fields.get("first", 0), f"{where}.first"),
        uncounted_token=None if uncounted is None else length_of(uncounted, f"{where}.uncounted_token"),
        counted_by_model="counted_by_model" in fields
        and true_of(fields["counted_by_model"], f"{where}.counted_by_model"),
    )


def _logits(value: object, where: str) -> tuple[LogitsStep, ...] | None:
    return None if value is None else array_of(value, where, of=_logits_step)


def _logits_step(value: object, where: str) -> LogitsStep:
    function, by = items_of(value, where, number=2)
    functions = {one.value: one for one in LogitsFunction}
    if not isinstance(function, str) or function not in functions:
        raise error_at(where, f"not one of {', '.join(functions)}")
    if not isinstance(by, float) or not isfinite(by):
        raise error_at(where, "not a finite number")
    return LogitsStep(functions[function], by)


def _routing(value: object, where: str) -> Routing:
    fields = fields_of(value, where, required=("experts_per_token",), optional=("in_float32",))
    return Routing(
        experts_per_token=positive_of(fields["experts_per_token"], f"{where}.experts_per_token"),
        in_float32="in_float32" in fields and true_of(fields["in_float32"], f"{where}.in_float32"),
    )


def _footprint(node: Mapping[str, object], key: str, where: str) -> Footprint:
    if key not in node:
        return _FOOTPRINTS[key]
    fields = fields_of(node[key], f"{where}.{key}", required=("kept", "passing"))
    return Footprint(*(_by_size(fields[name], f"{where}.{key}") for name in ("kept", "passing")))


def _own_code(node: Mapping[str, object], key: str, where: str) -> OwnCode | None:
    if key not in node:
        return None
    fields = fields_of(node[key], f"{where}.{key}", required=("by_token", "by_pair"))
    return OwnCode(*(_by_size(fields[name], f"{where}.{key}") for name in ("by_token", "by_pair")))


def _by_size(value: object, where: str) -> tuple[int, int]:
    narrow, wide = items_of(value, where, number=2)
    return length_of(narrow, where), length_of(wide, where)


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
