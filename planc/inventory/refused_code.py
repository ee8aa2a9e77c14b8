"""Configs that ask for code of others are refused, whatever is known of their models already."""

from __future__ import annotations

from pathlib import Path

from planc.hub.remote_code import code_asked_for
from planc.inventory.files import InventoryError, parse_json


def refuse_remote_code(content: bytes, *, path: Path) -> None:
    """InventoryError where the config.json with this content, of `path`, asks for code of its own."""
    raw = parse_json(content, name=str(path))
    if isinstance(raw, dict) and (key := code_asked_for(raw)) is not None:
        raise InventoryError(
            f'{path} asks for code of its own ("{key}")',
            help=f"planc runs no remote code. Take a model that transformers implements, and drop {key}.",
        )
