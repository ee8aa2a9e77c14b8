"""The keys of a block and the arguments of a call: how a spec declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar, dataclass_transform

from planc.plan.scalars import ValueType
from planc.record import record

_Class = TypeVar("_Class", bound=type[Any])


def key(
    type: ValueType,
    *,
    unsaid: Any = MISSING,
    derived: Callable[[Mapping[str, Any]], Any] | None = None,
    unless: str = "",
    doc: str,
    example: str = "",
    positional: bool = False,
) -> Any:
    """A field of a block or of a call: how it is written, its default, one line of documentation.

    `unsaid` is the default: the value in a plan that does not say it. A key of a block without one has an
    example: what a plan could write. `derived` computes the default from the values of nested blocks and of
    the keys before it; `unsaid` is then its most common result. Without a default, a key is None if the block
    has the key or the nested blocks that `unless` names.
    """
    metadata = {
        "type": type,
        "default": unsaid,
        "derived": derived,
        "unless": unless,
        "doc": doc,
        "example": example,
        "positional": positional,
    }
    return field(metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(key, field))
def keyed(cls: _Class) -> _Class:
    """Make a record with keys. Its constructor takes every key: a default is what a *plan* may leave out."""
    return record(cls)


def type_of(spec_field: Field[Any]) -> ValueType:
    found: ValueType = spec_field.metadata["type"]
    return found


def example(spec_field: Field[Any]) -> str:
    """A value that a plan could write for a key or an argument; empty if only the author can know one."""
    given: str = spec_field.metadata["example"]
    default = spec_field.metadata["default"]
    return given or ("" if default is MISSING or default is None else type_of(spec_field).render(default))


def keys(record: type[Any]) -> tuple[Field[Any], ...]:
    """The fields of a spec that a plan can write."""
    return tuple(spec_field for spec_field in fields(record) if "type" in spec_field.metadata)


def unsaid(record: type[Any]) -> dict[str, Any]:
    """The defaults of a record's keys, for a spec that is made rather than written."""
    return {spec_field.name: spec_field.metadata["default"] for spec_field in keys(record)}
