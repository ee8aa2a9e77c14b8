"""Inventory and configuration files: read within limits, written atomically. No torch here."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path


class InventoryError(ValueError):
    """A model directory from which planc can't read or make an inventory.

    `message` states what is wrong and where; `help` states what to do about it.
    """

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


MAX_INVENTORY_BYTES = 32 * 1024 * 1024
MAX_CONFIG_BYTES = 4 * 1024 * 1024

CONFIG_NAME = "config.json"
INVENTORY_NAME = "inventory.json"


def read_regular_file(path: Path, *, limit_bytes: int) -> bytes:
    """The content of `path`. InventoryError if it is not a regular file, too large or unreadable.

    A FIFO or a device would block or never end, so the kind is checked before opening.
    """
    try:
        if not path.is_file():
            raise InventoryError(f"{path} is not a regular file", help=f"put a regular file at {path}")
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise InventoryError(
            f"{path} cannot be read: {error.strerror}", help="check the path and its permissions"
        ) from error
    if len(content) > limit_bytes:
        raise InventoryError(
            f"{path} is larger than {limit_bytes} bytes", help=f"check that {path.name} is the intended file"
        )
    return content


def read_config(model_dir: Path) -> bytes:
    """The bytes of config.json in `model_dir`."""
    return read_regular_file(model_dir / CONFIG_NAME, limit_bytes=MAX_CONFIG_BYTES)


def config_digest(config: bytes) -> str:
    """The SHA-256 of a config.json, in hexadecimal."""
    return hashlib.sha256(config).hexdigest()


def parse_json(content: bytes, *, name: str) -> object:
    """The JSON value in `content`; InventoryError, with `name` in it, if it is not JSON."""
    try:
        return json.loads(content, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise InventoryError(f"{name}: nested too deeply", help=f"check the content of {name}") from error
    except ValueError as error:
        raise InventoryError(f"{name}: not JSON: {error}", help=f"check the content of {name}") from error


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the key "{twice}" occurs twice')
    return keys


def write_atomically(path: Path, *, text: str) -> None:
    """Write `path` atomically: readers and other writers never see a part of it. OSError if that fails.

    The temporary name is random: ranks on several hosts can share a directory and a process id.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
