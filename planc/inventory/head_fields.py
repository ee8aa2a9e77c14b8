"""How attentions work on a share of their heads, as JSON values. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planc.inventory.json_values import (
    array_of,
    error_at,
    fields_of,
    items_of,
    length_of,
    positive_of,
    string_of,
    strings_of,
)
from planc.inventory.schema import KvProjection, OwnHeads, Packed, PerHead, SharedKv
from planc.inventory.tree import AttentionNode

SHARING_FIELDS = ("packed", "per_head", "shared_kv")
_OWN_HEADS_FIELDS = ("modules", "num_heads", "num_kv_heads", "counts")
_KV_COUNTS = ("counts", "group_counts", "kv_counts")


def own_heads_fields(own_heads: tuple[OwnHeads, ...]) -> list[dict[str, object]]:
    """Modules with equal heads together, as most models repeat one layer."""
    same_heads: dict[OwnHeads, list[str]] = {}
    for one in own_heads:
        same_heads.setdefault(replace(one, fqn=""), []).append(one.fqn)
    return [
        {
            "modules": fqns,
            "num_heads": one.num_heads,
            "num_kv_heads": one.num_kv_heads,
            "counts": one.counts,
            **sharing_fields(one),
        }
        for one, fqns in same_heads.items()
    ]


def own_heads_from(value: object, *, order: tuple[str, ...]) -> tuple[OwnHeads, ...]:
    """The attentions with their own code, in this order. InventoryError, naming the place, if others are."""
    found: dict[str, OwnHeads] = {}
    for one in array_of(value, "own_heads", of=lambda item, _: item):
        fields = fields_of(one, "own_heads", required=_OWN_HEADS_FIELDS, optional=SHARING_FIELDS)
        for fqn in strings_of(fields["modules"], "own_heads.modules"):
            if fqn in found or fqn not in order:
                raise error_at("own_heads", f'"{fqn}" is there twice, or is not in own_attentions')
            found[fqn] = OwnHeads(
                fqn,
                positive_of(fields["num_heads"], "own_heads.num_heads"),
                positive_of(fields["num_kv_heads"], "own_heads.num_kv_heads"),
                strings_of(fields["counts"], "own_heads.counts"),
                *sharing_from(fields, "own_heads"),
            )
    return tuple(found[fqn] for fqn in order if fqn in found)


def sharing_fields(one: AttentionNode | OwnHeads) -> dict[str, object]:
    """What `sharing_from` reads, where there is any."""
    found = {
        "packed": [[held.layer, held.widths] for held in one.packed],
        "per_head": [[each.argument, each.tensor_dim, each.is_per_sample] for each in one.per_head],
        "shared_kv": _shared_kv_fields(one.shared_kv) if one.shared_kv else None,
    }
    return {key: value for key, value in found.items() if value}


def sharing_from(
    fields: Mapping[str, object], where: str
) -> tuple[tuple[Packed, ...], tuple[PerHead, ...], SharedKv | None]:
    """What projections hold, the arguments by head, and how key/value heads are shared."""
    packed = array_of(fields.get("packed", []), f"{where}.packed", of=_packed)
    per_head = array_of(fields.get("per_head", []), f"{where}.per_head", of=_per_head)
    shared = fields.get("shared_kv")
    return packed, per_head, None if shared is None else _shared_kv(shared, f"{where}.shared_kv")


def _packed(value: object, where: str) -> Packed:
    layer, widths = items_of(value, where, number=2)
    return Packed(string_of(layer, where), array_of(widths, where, of=positive_of))


def _per_head(value: object, where: str) -> PerHead:
    argument, tensor_dim, is_per_sample = items_of(value, where, number=3)
    if not isinstance(is_per_sample, bool):
        raise error_at(where, "not a boolean")
    return PerHead(string_of(argument, where), length_of(tensor_dim, where), is_per_sample)


def _shared_kv_fields(shared: SharedKv) -> dict[str, object]:
    projections = [[one.layer, one.query_width, one.kv_widths] for one in shared.projections]
    counts = {key: getattr(shared, key) for key in _KV_COUNTS if getattr(shared, key)}
    return {"projections": projections, **counts}


def _shared_kv(value: object, where: str) -> SharedKv:
    fields = fields_of(value, where, required=("projections",), optional=_KV_COUNTS)
    counts = {key: strings_of(fields.get(key, []), f"{where}.{key}") for key in _KV_COUNTS}
    projections = array_of(fields["projections"], f"{where}.projections", of=_kv_projection)
    return SharedKv(projections, **counts)


def _kv_projection(value: object, where: str) -> KvProjection:
    layer, query_width, kv_widths = items_of(value, where, number=3)
    widths = array_of(kv_widths, where, of=positive_of)
    return KvProjection(string_of(layer, where), widths, length_of(query_width, where))
