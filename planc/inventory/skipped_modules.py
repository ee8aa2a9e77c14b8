"""Reject modules that may not run: a probe of one branch does not show the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from planc.inventory.files import InventoryError

_NUMBER = re.compile(r"\d+")


def refuse_skipped(class_name: str, modules: Iterable[str], *, seen: Collection[str]) -> None:
    """InventoryError if one member of a module list was `seen` to run, and another was not."""
    kinds = {_NUMBER.sub("*", fqn) for fqn in seen}
    for fqn in modules:
        if fqn not in seen and _NUMBER.sub("*", fqn) in kinds:
            raise InventoryError(
                f"{class_name} chooses which modules run by the values of tensors: `{fqn}` may not run",
                help="use a model whose experts are stacked in one module, or all run on every token",
            )
