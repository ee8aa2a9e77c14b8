"""Which parameters transformers' Trainer leaves out of weight decay."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, exact_families

# Trainer.get_decay_parameter_names, transformers 5: these names, and all that torch's LayerNorm owns.
_SPARED = re.compile(r"bias|layernorm|rmsnorm|(^|\.)norm(\.|$)|_norm(\.|$)")
_SPARED_CLASS = "LayerNorm"


def spared_patterns(inventory: Inventory) -> tuple[str, ...]:
    """Patterns for the norms and biases of a model: of modules where all that they own is spared."""
    return as_patterns(exact_families(inventory, _spared(inventory)))


def _spared(inventory: Inventory) -> Iterator[str]:
    for module in inventory.modules:
        own = [parameter.name for parameter in module.parameters]
        spared = [name for name in own if _is_spared(module.class_name, f"{module.fqn}.{name}")]
        yield from [module.fqn] if spared == own and own else [f"{module.fqn}.{name}" for name in spared]


def _is_spared(class_name: str, fqn: str) -> bool:
    return class_name == _SPARED_CLASS or _SPARED.search(fqn.lower()) is not None
