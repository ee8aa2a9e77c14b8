"""The file of a model directory that transformers reads its weights from. Reads names only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NAMED_BY_CONFIG = "transformers_weights"
"""The key of a config.json that names another file or index."""
ADAPTER = "adapter_config.json"
_SHARD_OF_MESH = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
"""Files that `save_pretrained` writes on a mesh; `from_pretrained` then reads nothing else."""


class UnreadableWeights(ValueError):
    """A directory whose weights transformers reads in a way that planc does not.

    `message` states why, and `help` what to do about it.
    """

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


def weights_name(folder: Path, config: Mapping[str, object]) -> str:
    """The name of the file or index that transformers reads, there or not. UnreadableWeights as below."""
    preferred = preferred_name(folder, config)
    is_sharded = preferred == SINGLE and (folder / INDEX).is_file() and not (folder / SINGLE).is_file()
    return INDEX if is_sharded else preferred


def preferred_name(folder: Path, config: Mapping[str, object]) -> str:
    """The name that transformers looks for first. UnreadableWeights as below."""
    require_readable(folder, config)
    named = config.get(NAMED_BY_CONFIG)
    return named if isinstance(named, str) else SINGLE


def unread_index(folder: Path, config: Mapping[str, object]) -> str | None:
    """An index that transformers ignores because the directory has a whole file too."""
    is_ignored = weights_name(folder, config) == SINGLE and (folder / INDEX).is_file()
    return INDEX if is_ignored else None


def require_readable(folder: Path, config: Mapping[str, object]) -> None:
    """UnreadableWeights if transformers makes more of the directory than its plain safetensors weights."""
    if config.get("quantization_config") is not None:
        raise UnreadableWeights(
            f"the weights in {folder} are quantized: its config.json has a quantization_config",
            help="use a checkpoint in bfloat16, float16 or float32, without a quantization_config",
        )
    if config.get("fusion_config") is not None:
        raise UnreadableWeights(
            f"the config.json in {folder} has a fusion_config, which changes modules as they are loaded",
            help="remove fusion_config: it is for inference",
        )
    if (folder / ADAPTER).is_file():
        raise UnreadableWeights(
            f"{folder} has an adapter ({ADAPTER}), which transformers adds to the weights",
            help=f"merge the adapter into the weights, or remove {ADAPTER} to train without it",
        )
    if sharded := _shard_of_mesh(folder):
        raise UnreadableWeights(
            f"{folder} has {sharded}, a checkpoint of several ranks, which transformers reads instead of "
            f"{SINGLE}",
            help="save the model whole, or remove the files of the ranks",
        )
    _require_plain_name(folder, config.get(NAMED_BY_CONFIG))


def _shard_of_mesh(folder: Path) -> str | None:
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return min((name for name in names if _SHARD_OF_MESH.fullmatch(name)), default=None)


def _require_plain_name(folder: Path, named: object) -> None:
    if named is None:
        return
    is_name = isinstance(named, str) and Path(named).name == named
    if not is_name or not str(named).endswith((".safetensors", ".safetensors.index.json")):
        raise UnreadableWeights(
            f"{NAMED_BY_CONFIG} in the config.json of {folder} is {named!r}, not a safetensors file or index "
            "in its directory",
            help=f"name a file of the directory, or remove {NAMED_BY_CONFIG}",
        )
