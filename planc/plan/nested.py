"""Blocks inside blocks: how a spec declares them, and which keys they replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields
from typing import Any

from planc.plan.keys import keys


def nested(
    labels: Mapping[str, type[Any]], *, doc: str, any_label: bool = False, name: str | None = None
) -> Any:
    """A field for blocks inside a block, `name "label" { ... }`: the record of each label it may have.

    The value maps the labels that a plan has to their records. With `any_label` a plan chooses any number of
    labels; the one that is given here represents all of them. The field has the block's name, unless `name`
    gives it.
    """
    return field(metadata={"labels": labels, "doc": doc, "any_label": any_label, "name": name})


def present_keys(record: Any) -> Iterator[Field[Any]]:
    """The keys of a block's record, without those that nested blocks or another key replace."""
    for spec_field in keys(type(record)):
        if not spec_field.metadata["unless"] or getattr(record, spec_field.name) is not None:
            yield spec_field


def nested_blocks(record: type[Any]) -> Mapping[str, Mapping[str, type[Any]]]:
    """The blocks that may stand inside a block, by name, then by label."""
    return {block: spec_field.metadata["labels"] for block, spec_field in _nested_fields(record)}


def nested_field(record: type[Any], block: str) -> str:
    """The name of the field that holds the nested blocks of a name."""
    return next(spec_field.name for name, spec_field in _nested_fields(record) if name == block)


def _nested_fields(record: type[Any]) -> Iterator[tuple[str, Field[Any]]]:
    for spec_field in fields(record):
        if "labels" in spec_field.metadata:
            yield spec_field.metadata["name"] or spec_field.name, spec_field


def freely_labelled(record: type[Any]) -> tuple[str, ...]:
    """The nested blocks whose labels a plan chooses."""
    return tuple(block for block, one in _nested_fields(record) if one.metadata["any_label"])
