"""A directory that transformers loads, written without torch and put into place by rename.

    begin        hf.tmp/                    any leftover of a dead export is removed
    write_file   hf.tmp/model*.safetensors  streamed, fsynced
    finish       hf.tmp/config.json, ...    then the earlier export, if any, is renamed away
                 hf/                        the rename commits; then the earlier export is deleted

If a process dies at any point, `hf` is either absent or complete. If it dies between the two renames, the
next export restores the earlier one when it begins.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.runtime.checkpoint_format.commit import fsync_directory
from planc.runtime.checkpoint_format.errors import CheckpointError, storage_errors
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.runtime.run_directory.plain_files import NotPlainError, create_to_write, kind_of, read_utf8, remove
from planc.strict_json import loads

ORIGIN_NAME = "planc_export.json"
"""Names the plan and step of an export; a directory without it is never replaced."""

_MAX_ORIGIN_BYTES = 10_000

COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that are copied if the model's own directory has them."""


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of an export other than the weights.

    `source` is the model's own directory; `config` the entries of config.json that the export changes;
    `files` the tensors of each weight file; `origin` the contents of ORIGIN_NAME, including `step`.
    """

    source: Path
    config: Mapping[str, Any]
    files: Mapping[str, Sequence[Entry]]
    origin: Mapping[str, Any]


def plan_files(entries: Iterable[Entry], *, max_bytes: int) -> dict[str, tuple[Entry, ...]]:
    """The tensors of each weight file, by transformers' names; a larger tensor has a file of its own.

    In each file wider elements come first, as `encode_header` needs.
    """
    groups: list[list[Entry]] = []
    room = 0
    for entry in entries:
        if not groups or entry.size_bytes > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(entry)
        room -= entry.size_bytes
    held = [tuple(sorted(group, key=lambda entry: -entry.element_bytes)) for group in groups]
    if len(held) == 1:
        return {"model.safetensors": held[0]}
    return {f"model-{number:05}-of-{len(held):05}.safetensors": group for number, group in enumerate(held, 1)}


def begin(folder: Path) -> Path:
    """The new, empty directory in which to write the export, before it becomes `folder`.

    Raises CheckpointError if `folder` exists and is not an export of a run.
    """
    temporary, aside = _temporary(folder), _aside(folder)
    with storage_errors(f"cannot begin an export in {folder.parent}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if kind_of(aside) == "directory" and kind_of(folder) is None:
            aside.rename(folder)
        exported_step(folder)
        for leftover in (temporary, aside):
            remove(leftover)
        temporary.mkdir()
    return temporary


def write_file(path: Path, entries: Sequence[Entry], *, data: Iterable[memoryview]) -> None:
    """Write a weight file durably: `data` yields the elements of each entry, one entry at a time."""
    with storage_errors(f"cannot write {path}"), create_to_write(path) as stream:
        # transformers rejects a file that does not name its framework.
        stream.write(encode_header(entries, metadata={"format": "pt"}))
        for elements in data:
            stream.write(elements)
        _sync(stream)


def finish(temporary: Path, folder: Path, *, described: Description) -> str:
    """Complete an export and put it into place; return `, replacing the export of step 60` if it did."""
    with storage_errors(f"cannot complete {folder}"):
        _write_config(temporary, described)
        for name in COMPANIONS:
            if (described.source / name).is_file():
                _write(temporary / name, (described.source / name).read_bytes())
        if len(described.files) > 1:
            _write_json(temporary / "model.safetensors.index.json", _index(described.files))
        _write_json(temporary / ORIGIN_NAME, described.origin)
        fsync_directory(temporary)
        replaced = exported_step(folder)
        if replaced is not None:
            folder.rename(_aside(folder))
        temporary.rename(folder)
        fsync_directory(folder.parent)
        if replaced is None:
            return ""
        shutil.rmtree(_aside(folder))
    return f", replacing the export of step {replaced}"


def _temporary(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.tmp")


def _aside(folder: Path) -> Path:
    """Where an earlier export is kept while the new one takes its place."""
    return folder.with_name(f"{folder.name}.old.tmp")


def exported_step(folder: Path) -> int | None:
    """The step of an export; None if there isn't one. CheckpointError for anything else."""
    kind = kind_of(folder)
    if kind is None:
        return None
    try:
        if kind != "directory":
            raise NotPlainError(folder, kind=kind, wanted="directory")
        return int(loads(read_utf8(folder / ORIGIN_NAME, max_bytes=_MAX_ORIGIN_BYTES))["step"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(
            f"{folder} is not an export of a run, and the new export would replace it",
            help="move it away and run again; with checkpoint.resume the run resumes from its last save",
        ) from None


def _write_config(temporary: Path, described: Description) -> None:
    config = json.loads((described.source / "config.json").read_text(encoding="utf-8"))
    # The exported weights are not quantized; with this entry transformers would read them as if they were.
    config.pop("quantization_config", None)
    _write_json(temporary / "config.json", {**config, **described.config})


def _index(files: Mapping[str, Sequence[Entry]]) -> dict[str, Any]:
    entries = [(entry, name) for name, held in files.items() for entry in held]
    return {
        "metadata": {"total_size": sum(entry.size_bytes for entry, _ in entries)},
        "weight_map": {entry.key: name for entry, name in entries},
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _write(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    with create_to_write(path) as stream:
        stream.write(content)
        _sync(stream)


def _sync(stream: Any) -> None:
    # fsync does not write what Python still buffers.
    stream.flush()
    os.fsync(stream.fileno())
