"""Reject weights that planc does not read as transformers does."""

from __future__ import annotations

from pathlib import Path

from planc.hub.names import model_folder
from planc.hub.weights import UnreadableWeights, require_readable
from planc.inventory.files import CONFIG_NAME, InventoryError, parse_json, read_config


def refuse_unreadable_weights(path: str, *, base: Path) -> None:
    """InventoryError if transformers makes more of a plan's model directory than its plain weights. A
    directory with an inventory only does not show that."""
    folder = model_folder(path, base=base)
    if not (folder / CONFIG_NAME).exists():
        return
    config = parse_json(read_config(folder), name=str(folder / CONFIG_NAME))
    try:
        require_readable(folder, config if isinstance(config, dict) else {})
    except UnreadableWeights as error:
        raise InventoryError(error.message, help=error.help) from error
