"""Weights that are quantized, which planc does not read."""

from __future__ import annotations

from pathlib import Path

from planc.hub.names import model_folder
from planc.inventory.files import CONFIG_NAME, InventoryError, parse_json, read_config


def refuse_quantized(path: str, *, base: Path) -> None:
    """InventoryError where the config.json of what a plan names as its model says that its weights are
    quantized. A folder that holds an inventory alone says nothing of them."""
    folder = model_folder(path, base=base)
    if not (folder / CONFIG_NAME).exists():
        return
    config = parse_json(read_config(folder), name=str(folder / CONFIG_NAME))
    if isinstance(config, dict) and config.get("quantization_config") is not None:
        raise InventoryError(
            f"the weights in {folder} are quantized, says the quantization_config of its config.json",
            help="Take a checkpoint in bfloat16, float16 or float32, whose config.json has no such entry.",
        )
