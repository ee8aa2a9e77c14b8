"""Reject configs that require remote code, even if their inventory is known already."""

from __future__ import annotations

from pathlib import Path

from planc.hub.remote_code import code_asked_for
from planc.inventory.files import InventoryError, parse_json


def refuse_remote_code(content: bytes, *, path: Path) -> None:
    """InventoryError if the config.json with this content, at `path`, requires remote code."""
    raw = parse_json(content, name=str(path))
    if isinstance(raw, dict) and (key := code_asked_for(raw)) is not None:
        raise InventoryError(
            f'{path} requires remote code ("{key}")',
            help=f"planc runs no remote code: use a model that transformers implements, and remove {key}",
        )
