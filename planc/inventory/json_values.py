"""Records as JSON values and back, by the types of their fields. No torch here.

A record is an object without the fields that have their defaults, or an array if AS_ARRAYS has its class.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from math import isfinite
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from planc.inventory.files import InventoryError
from planc.inventory.footprint import OwnCode
from planc.inventory.head_shares import KvProjection, Must, Named, Packed, PerHead
from planc.inventory.schema import Attention, Draw, Inventory, Parameter
from planc.record import record
from planc.vocab import LogitsStep

_Value = TypeVar("_Value")

AS_ARRAYS: Mapping[type, tuple[str, ...]] = {
    Parameter: ("name", "shape"),
    Draw: ("probability", "dims", "sources"),
    Packed: ("layer", "widths"),
    PerHead: ("argument", "tensor_dim", "is_per_sample"),
    KvProjection: ("layer", "query_width", "kv_widths"),
    LogitsStep: ("function", "by"),
}
"""The fields of records that are written without their names."""
_ALWAYS: Mapping[type, tuple[str, ...]] = {
    Inventory: ("ties", "tp_plan", "blocks"),
    Attention: ("window",),
    OwnCode: ("by_token", "by_pair"),
}
"""Fields that are written though they have their defaults."""


@record
class _Field:
    """A field as files have it: left out if it is optional and has its default."""

    name: str
    type: Any
    default: object
    is_optional: bool
    is_named: bool


@cache
def _fields(cls: Any) -> dict[str, _Field]:
    """The fields of a record by name."""
    types, always = get_type_hints(cls, include_extras=True), _ALWAYS.get(cls, ())
    return {
        declared.name: _Field(
            declared.name,
            types[declared.name],
            declared.default,
            is_optional=declared.default is not MISSING and declared.name not in always,
            is_named=_is_named(types[declared.name]),
        )
        for declared in fields(cls)
        if declared.init
    }


def _is_named(hint: Any) -> bool:
    return get_origin(hint) is Annotated and Named in get_args(hint)


def to_json(value: Any) -> object:
    """Convert a value to JSON that `from_json` reads."""
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if type(value) in AS_ARRAYS:
        return [to_json(getattr(value, name)) for name in AS_ARRAYS[type(value)]]
    return to_fields(value) if is_dataclass(value) else value


def to_fields(value: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a record as JSON values, but for these."""
    as_json = {}
    for one in _fields(value.__class__).values():
        item = getattr(value, one.name)
        if one.name not in without and not (one.is_optional and item == one.default):
            written: Any = to_json(item)
            as_json[one.name] = dict(written) if one.is_named else written
    return as_json


def from_fields(cls: Any, value: object, where: str, *, given: Mapping[str, Any]) -> Any:
    """The record of a JSON object. `given` are fields that the object does not have."""
    known = {name: one for name, one in _fields(cls).items() if name not in given}
    required = tuple(name for name, one in known.items() if not one.is_optional)
    prefix, values = "" if cls is Inventory else f"{where}.", {}
    for name, item in fields_of(value, where, required=required, optional=known).items():
        if known[name].type is bool and item is not True:
            raise error_at(f"{prefix}{name}", "must be true or absent")
        if item is None and known[name].is_optional and known[name].default is None:
            raise error_at(f"{prefix}{name}", "must be a value or absent")
        values[name] = from_json(known[name].type, item, f"{prefix}{name}")
    return cls(**given, **values)


def from_json(hint: Any, value: object, where: str) -> Any:
    """A value of the type. InventoryError, naming the place, if the JSON value is not one."""
    origin, members = get_origin(hint), get_args(hint)
    if _is_named(hint):
        return _from_entries(members[0], value, where)
    if origin is Annotated:
        found = from_json(members[0], value, where)
        for mark in members[1:]:
            if isinstance(mark, Must) and not mark.holds(found):
                raise error_at(where, mark.message)
        return found
    if origin in (Union, UnionType):
        return _from_either(members, value, where)
    if origin is tuple and members[1:] == (...,):
        return array_of(value, where, of=partial(from_json, members[0]))
    if origin is tuple:
        return _from_items(members, value, where)
    if hint in AS_ARRAYS:
        names = AS_ARRAYS[hint]
        items = _from_items(tuple(_fields(hint)[name].type for name in names), value, where)
        return hint(**dict(zip(names, items, strict=True)))
    is_record = hasattr(hint, "__dataclass_fields__")
    return from_fields(hint, value, where, given={}) if is_record else _plain(hint, value, where)


def _from_entries(hint: Any, value: object, where: str) -> tuple[Any, ...]:
    """Pairs of a name and a value: tuples, or records of two fields."""
    if not isinstance(value, dict):
        raise error_at(where, "not an object")
    pair = get_args(hint)[0]
    if pair in AS_ARRAYS:
        of = _fields(pair)[AS_ARRAYS[pair][1]].type
        return tuple(pair(name, from_json(of, item, f"{where}.{name}")) for name, item in value.items())
    of = get_args(pair)[1]
    return tuple((name, from_json(of, item, f"{where}.{name}")) for name, item in value.items())


def _from_either(members: tuple[Any, ...], value: object, where: str) -> Any:
    """A value of one of two types, of which one is None or an enumeration of names."""
    if type(None) in members:
        (other,) = (one for one in members if one is not type(None))
        return None if value is None else from_json(other, value, where)
    names, other = members
    return from_json(names if isinstance(value, str) else other, value, where)


def _from_items(hints: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise error_at(where, "not an array")
    if len(value) != len(hints):
        raise error_at(where, "not a pair" if len(hints) == 2 else f"not an array of {len(hints)}")
    return tuple(from_json(hint, item, where) for hint, item in zip(hints, value, strict=True))


def _plain(hint: type, value: object, where: str) -> object:
    if issubclass(hint, StrEnum):
        names = {one.value: one for one in hint}
        if not isinstance(value, str) or value not in names:
            raise error_at(where, f"not one of {', '.join(names)}")
        return names[value]
    # A bool is an int in Python and would pass isinstance.
    if type(value) is not hint or (isinstance(value, int) and value < 0):
        raise error_at(where, _NOT[hint])
    if isinstance(value, float) and not isfinite(value):
        raise error_at(where, "not a finite number")
    return value


_NOT = {str: "not a string", bool: "not a boolean", int: "not a whole number", float: "not a number"}


def fields_of(
    value: object, where: str, *, required: tuple[str, ...], optional: Container[str] | None
) -> dict[str, Any]:
    """A JSON object with these keys, and with any others if `optional` is None."""
    if not isinstance(value, dict):
        raise error_at(where, "not an object")
    for key in required:
        if key not in value:
            raise error_at(where, f'the key "{key}" is missing')
    for key in value:
        if optional is not None and key not in required and key not in optional:
            raise error_at(where, f'unknown key "{key}"')
    return value


def array_of(value: object, where: str, *, of: Callable[[object, str], _Value]) -> tuple[_Value, ...]:
    """A JSON array, each of its items read by `of`, which gets its place."""
    if not isinstance(value, list):
        raise error_at(where, "not an array")
    return tuple(of(item, f"{where}[{index}]") for index, item in enumerate(value))


def error_at(where: str, message: str) -> InventoryError:
    return InventoryError(f"{where}: {message}", help="write the inventory again: planc inventory DIR --save")
