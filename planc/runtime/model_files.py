"""A model folder's files, found and checked without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from planc.hub.remote_code import code_asked_for
from planc.runtime.errors import RunError

_SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 * 2**20
"""Half a million tensors."""


def config_digest(folder: Path) -> str:
    """The SHA-256 of a folder's config.json; RunError if there is none."""
    try:
        return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(
            f"{folder / 'config.json'}: {error.strerror}", help="check model.hf in the plan"
        ) from error


def refuse_remote_code(folder: Path) -> None:
    """RunError where a folder's config.json asks for code that is not in transformers."""
    if (key := code_asked_for(_config(folder))) is not None:
        raise RunError(
            f'{folder / "config.json"} asks for code of its own ("{key}")',
            help=f"planc runs no remote code: take a model that transformers implements, and drop {key}",
        )


def refuse_quantized(folder: Path) -> None:
    """RunError where a folder's config.json says that its weights are quantized: planc reads plain ones."""
    if _config(folder).get("quantization_config") is not None:
        raise RunError(
            f"the weights in {folder} are quantized, says the quantization_config of its config.json",
            help="take a checkpoint in bfloat16, float16 or float32, whose config.json has no such entry",
        )


def _config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def weight_names(folder: Path) -> tuple[str, ...]:
    """The names of a folder's weight files, whether they are there or not yet. RunError as below."""
    index = folder / INDEX
    return tuple(sorted(set(_read_index(index).values()))) if index.is_file() else (_SINGLE,)


def weight_files(folder: Path) -> dict[str, Path] | Path:
    """The safetensors file that holds all weights, or each tensor's file as the index says.

    RunError for a folder without safetensors, and for an index that leaves the folder.
    """
    index = folder / INDEX
    if index.is_file():
        return _from_index(folder, index)
    if (folder / _SINGLE).is_file():
        return folder / _SINGLE
    raise RunError(
        f"{folder} has neither {_SINGLE} nor {INDEX}",
        help="planc reads weights from safetensors only; set weights = random to start without",
    )


def _from_index(folder: Path, index: Path) -> dict[str, Path]:
    names = _read_index(index)
    for name in sorted(set(names.values())):
        if not (folder / name).is_file():
            raise RunError(f"{index} names {name}, which does not exist", help="complete the folder")
    return {key: folder / name for key, name in names.items()}


def _read_index(index: Path) -> dict[str, str]:
    """Each tensor's file, by name, which is a safetensors file of the index's own folder."""
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise RunError(f"{index} is larger than an index can be", help="restore the file")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(key): str(name) for key, name in weight_map.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise RunError(f"{index} is no safetensors index: {error}", help="restore the file") from error
    for name in sorted(set(names.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise RunError(f"{index} names {name!r}, which is no safetensors file of its folder")
    return names
