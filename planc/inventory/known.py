"""The models that a check uses, each read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from planc.inventory.load import OnProbe, inventory_of
from planc.inventory.plain_weights import refuse_unreadable_weights
from planc.inventory.schema import Inventory


@dataclass(slots=True)
class KnownModels:
    """Inventories by a plan's `model.hf`. With `may_probe` false, only those that are saved or cached."""

    base: Path
    cache_dir: Path
    may_probe: bool = True
    found: dict[str, Inventory] = field(default_factory=dict)
    on_probe: OnProbe | None = None
    """Entered while a model is read for the first time, which takes seconds."""
    place: Callable[[str], str] = str
    """Where a model's files are: an absolute path, or a path as `model.hf` is."""

    def get(self, hf: str, *, with_weights: bool = False) -> Inventory:
        """The inventory of a model. InventoryError without one, or for unreadable weights that are used."""
        if hf not in self.found:
            loaded = inventory_of(
                self.place(hf),
                base=self.base,
                cache_dir=self.cache_dir,
                may_probe=self.may_probe,
                on_probe=self.on_probe,
            )
            self.found[hf] = loaded.inventory
        if with_weights:
            refuse_unreadable_weights(self.place(hf), base=self.base)
        return self.found[hf]

    def as_known(self) -> KnownModels:
        """A copy for checks that should not wait for a model."""
        return KnownModels(self.base, self.cache_dir, may_probe=False, found=self.found, place=self.place)
