"""Reject quantized weights, which planc does not read."""

from __future__ import annotations

from pathlib import Path

from planc.hub.names import model_folder
from planc.inventory.files import CONFIG_NAME, InventoryError, parse_json, read_config


def refuse_quantized(path: str, *, base: Path) -> None:
    """InventoryError if the config.json of a plan's model marks its weights as quantized. A directory with an
    inventory only does not show that."""
    folder = model_folder(path, base=base)
    if not (folder / CONFIG_NAME).exists():
        return
    config = parse_json(read_config(folder), name=str(folder / CONFIG_NAME))
    if isinstance(config, dict) and config.get("quantization_config") is not None:
        raise InventoryError(
            f"the weights in {folder} are quantized: its config.json has a quantization_config",
            help="use a checkpoint in bfloat16, float16 or float32, without a quantization_config",
        )
