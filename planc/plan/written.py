"""The unresolved content of each block, and the state of one resolve."""

from __future__ import annotations

from dataclasses import dataclass, field

from planc.plan.scope import Links, OriginStep, Scope
from planc.source import Span
from planc.syntax import ast
from planc.vocab import MeshDim


@dataclass(slots=True, eq=False, repr=False)
class Written:
    """The unresolved content of one block: values by key, rules, directives, mesh dims, nested blocks.

    `span` covers its name, `whole` all of it.
    """

    span: Span
    whole: Span
    values: dict[str, tuple[ast.Value, Span, tuple[OriginStep, ...]]] = field(default_factory=dict)
    rules: list[ast.Rule] = field(default_factory=list)
    directives: dict[str, ast.Directive] = field(default_factory=dict)
    on: tuple[MeshDim, ...] = ()
    nested: dict[tuple[str, str], Written] = field(default_factory=dict)
    """The blocks inside, by name and label."""
    mistyped: set[str] = field(default_factory=set)
    """Keys that an unknown key was most likely meant to be: they are not missing as well."""


@dataclass(slots=True, eq=False, repr=False)
class Resolver:
    """The state of one resolve: the scope, and the tables that become the plan's."""

    scope: Scope
    links: Links
    origins: dict[str, tuple[OriginStep, ...]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    num_alternatives: int = 0
    mistyped: set[str] = field(default_factory=set)
    """Blocks that an unknown block was most likely meant to be: they are not missing as well."""
