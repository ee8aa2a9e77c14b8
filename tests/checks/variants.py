"""tiny-llama with one thing changed: the models that some faults need."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from planc.api import Checked
from planc.inventory.codec import dumps, loads
from planc.inventory.schema import Inventory, Kind, Module

Check = Callable[..., Checked]
"""The fixture that checks a text."""

MODELS = Path(__file__).parents[2] / "plans" / "models"


def tiny_llama() -> Inventory:
    return loads((MODELS / "tiny-llama" / "inventory.json").read_bytes())


def variants() -> Mapping[str, Inventory]:
    """Inventories by the directory name that plans give them."""
    tiny = tiny_llama()
    return {
        "tiny-llama-without-plan": replace(tiny, tp_plan=()),
        "tiny-llama-wide-norms": replace(tiny, modules=tuple(_with_wide_norms(tiny))),
    }


def _with_wide_norms(inventory: Inventory) -> list[Module]:
    """Norms over all heads at once between the query and key projections and the attention, as in OLMo 2."""
    modules: list[Module] = []
    for module in inventory.modules:
        attention, _, name = module.fqn.rpartition(".")
        if name != "o_proj":
            modules.append(module)
            continue
        sources = tuple(fqn.replace("q_proj", "q_norm").replace("k_proj", "k_norm") for fqn in module.sources)
        modules.append(replace(module, sources=sources))
        for letter in ("q", "k"):
            projection = inventory.get(f"{attention}.{letter}_proj")
            assert projection is not None
            width = projection.parameters[0].shape[0]
            weight = replace(projection.parameters[0], shape=(width,))
            fqn = f"{attention}.{letter}_norm"
            modules.append(Module(fqn, "RMSNorm", Kind.NORM, (weight,), sources=(projection.fqn,)))
    return modules


def write_models(base: Path) -> None:
    """Every model of the repository and every variant, under `base/models`; and the presets."""
    shutil.copytree(MODELS, base / "models")
    shutil.copytree(MODELS.parent / "presets", base / "presets")
    for name, inventory in variants().items():
        folder = base / "models" / name
        folder.mkdir()
        (folder / "inventory.json").write_text(dumps(inventory))
