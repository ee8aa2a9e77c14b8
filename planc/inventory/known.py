"""The models that one check asks for, each read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from planc.inventory.load import OnProbe, inventory_of
from planc.inventory.schema import Inventory


@dataclass(slots=True)
class KnownModels:
    """Inventories by what a plan names as its model. With `may_probe` false, only what is known already."""

    base: Path
    cache_dir: Path
    may_probe: bool = True
    found: dict[str, Inventory] = field(default_factory=dict)
    on_probe: OnProbe | None = None
    """Gets the folder of a model that is read for the first time, before that takes its time."""

    def get(self, hf: str) -> Inventory:
        if hf not in self.found:
            loaded = inventory_of(
                hf,
                base=self.base,
                cache_dir=self.cache_dir,
                may_probe=self.may_probe,
                on_probe=self.on_probe,
            )
            self.found[hf] = loaded.inventory
        return self.found[hf]

    def as_known(self) -> KnownModels:
        """The same, for checks that should not wait for a model."""
        return KnownModels(self.base, self.cache_dir, may_probe=False, found=self.found)
