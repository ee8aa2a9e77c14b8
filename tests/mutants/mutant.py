"""What a mutation is: an edit of a plan and of its model's config, of a named type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.mutants.draft import Draft
from tests.mutants.shrink import Config


@dataclass(frozen=True, slots=True)
class Edited:
    """A mutated plan and config; `note` says in a few words what was done."""

    draft: Draft
    config: Config
    note: str


Mutation = Callable[[Draft, Config, Random], Edited | None]
"""An edit of its type, drawn at random; None where the plan offers nothing to edit."""


@dataclass(frozen=True, slots=True)
class MutationType:
    """A mutation, with the mesh dims of which one must have several ranks for it to matter."""

    mutate: Mutation
    over: tuple[str, ...] = ()
    weight: int = 1
    """How often it is drawn, beside the others."""
