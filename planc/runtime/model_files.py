"""The files of a model directory, located and checked without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from planc.hub import weights
from planc.hub.remote_code import code_asked_for
from planc.hub.weights import INDEX, SINGLE, UnreadableWeights, require_readable, weights_name
from planc.runtime.errors import RunError

_T = TypeVar("_T")
_MAX_INDEX_BYTES = 64 * 2**20
"""Enough for half a million tensors."""
STALE = "write the inventory again with this release of transformers: planc inventory DIR --save"
"""The help for a model that is not built as its inventory has it."""


def config_digest(folder: Path) -> str:
    """The SHA-256 of a directory's config.json; RunError if it is missing."""
    try:
        return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(
            f"{folder / 'config.json'}: {error.strerror}", help="check model.hf in the plan"
        ) from error


def refuse_remote_code(folder: Path) -> None:
    """RunError if a directory's config.json requires code that is not in transformers."""
    if (key := code_asked_for(read_config(folder))) is not None:
        raise RunError(
            f'{folder / "config.json"} requires remote code ("{key}")',
            help=f"planc runs no remote code: use a model that transformers implements, and remove {key}",
        )


def refuse_unreadable(folder: Path) -> None:
    """RunError if transformers makes more of a directory than its plain weights."""
    _as_run_error(require_readable, folder)


def unread_index(folder: Path) -> str | None:
    """The index that transformers ignores because the directory has a whole file too."""
    return _as_run_error(weights.unread_index, folder)


def preferred_name(folder: Path) -> str:
    """The name of the file or index that transformers looks for first. RunError as in `weight_files`."""
    return _as_run_error(weights.preferred_name, folder)


def _as_run_error(function: Callable[[Path, Mapping[str, object]], _T], folder: Path) -> _T:
    try:
        return function(folder, read_config(folder) if (folder / "config.json").exists() else {})
    except UnreadableWeights as error:
        raise RunError(error.message, help=error.help) from error


def read_config(folder: Path) -> dict[str, object]:
    """The values of a directory's config.json; RunError if it is not readable."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def weight_names(folder: Path) -> tuple[str, ...]:
    """The names of a directory's weight files, present or not. RunError as in `weight_files`."""
    name = _as_run_error(weights_name, folder)
    is_index = name.endswith(".json") and (folder / name).is_file()
    return tuple(sorted(set(_read_index(folder / name).values()))) if is_index else (name,)


def weight_files(folder: Path) -> dict[str, Path] | Path:
    """The safetensors file that holds all weights, or each tensor's file by the index.

    It is the file that transformers reads. RunError for a directory without safetensors, and for an index
    that names files elsewhere.
    """
    path = folder / _as_run_error(weights_name, folder)
    if not path.is_file():
        missing = f"neither {SINGLE} nor {INDEX}" if path.name == SINGLE else f"no {path.name}"
        raise RunError(
            f"{folder} has {missing}",
            help="planc reads weights from safetensors only; set weights = random to start from random ones",
        )
    return _from_index(folder, path) if path.name.endswith(".json") else path


def _from_index(folder: Path, index: Path) -> dict[str, Path]:
    names = _read_index(index)
    for name in sorted(set(names.values())):
        if not (folder / name).is_file():
            raise RunError(f"{index} names {name}, which does not exist", help="add the missing file")
    return {key: folder / name for key, name in names.items()}


def _read_index(index: Path) -> dict[str, str]:
    """Each tensor's file, by name: a safetensors file in the index's own directory."""
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise RunError(f"{index} is larger than an index can be", help="restore the file")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(key): str(name) for key, name in weight_map.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise RunError(f"{index} is not a safetensors index: {error}", help="restore the file") from error
    for name in sorted(set(names.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise RunError(f"{index} names {name!r}, which is not a safetensors file in its directory")
    return names
