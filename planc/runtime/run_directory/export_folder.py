"""A directory that transformers loads, written without torch and put into place by rename.

    begin        hf.tmp/                    any leftover of a dead export is renamed, then removed
    write_file   hf.tmp/model*.safetensors  streamed, fsynced
    finish       hf.tmp/config.json, ...    then the earlier export, if any, is renamed away
                 hf/                        the rename commits; then the earlier export is deleted

If a process dies at any point, `hf` is either absent or complete. If it dies between the two renames, the
next export restores the earlier one when it begins. What can't be deleted, as on a network file system while
a server of the model has it open, stays behind as `hf.old.deleted.tmp`; the next export tries again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from planc.hub.tokenizer_files import tokenizer_files
from planc.hub.weights import INDEX as _INDEX
from planc.hub.weights import NAMED_BY_CONFIG, SINGLE
from planc.runtime.checkpoint_format.commit import delete, fsync_directory, rename
from planc.runtime.checkpoint_format.errors import CheckpointError, storage_errors
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.runtime.files.best_effort import BestEffort, retried
from planc.runtime.files.plain_files import NotPlainError, create_to_write, kind_of, read_utf8, remove
from planc.strict_json import loads

ORIGIN_NAME = "planc_export.json"
"""Names the plan and step of an export; a directory without it is never replaced."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The names of peft's files."""

MAX_ORIGIN_BYTES = 10_000

_KEPT = ("generation_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files of the model's own directory, of which no training changes anything."""
_CONFIG = "config.json"
_WEIGHTS = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of an export other than the weights.

    `source` is the model's own directory; `tokenizer` the files of the plan's tokenizer, by their paths in
    its directory, None if the plan reads bytes; `config` the entries of config.json that the export changes;
    `files` the tensors of each weight file; `origin` the contents of ORIGIN_NAME, including `step`.
    """

    source: Path
    tokenizer: Mapping[str, bytes] | None
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
        return {SINGLE: held[0]}
    return {f"model-{number:05}-of-{len(held):05}.safetensors": group for number, group in enumerate(held, 1)}


def begin(folder: Path, *, effort: BestEffort | None = None) -> Path:
    """The new, empty directory in which to write the export, before it becomes `folder`.

    Raises CheckpointError if `folder` exists and is not an export of a run.
    """
    effort = effort or BestEffort()
    temporary, aside = folder.with_name(f"{folder.name}.tmp"), _aside(folder)
    with storage_errors(f"cannot begin an export in {folder.parent}"):
        retried(lambda: folder.parent.mkdir(parents=True, exist_ok=True))
        if kind_of(aside) == "directory" and kind_of(folder) is None:
            rename(aside, folder)
        exported_step(folder)
        for hidden in folder.parent.glob(f"{folder.name}.*deleted*.tmp"):
            effort.attempt(f"delete {hidden}", partial(remove, hidden))
        for leftover in (temporary, aside):
            delete(leftover, effort=effort)
        retried(lambda: temporary.mkdir(exist_ok=True))
    return temporary


def write_file(path: Path, entries: Sequence[Entry], *, data: Iterable[memoryview]) -> None:
    """Write a weight file durably: `data` yields the elements of each entry, one entry at a time."""
    with storage_errors(f"cannot write {path}"), create_to_write(path) as stream:
        # transformers rejects a file that does not name its framework.
        stream.write(encode_header(entries, metadata={"format": "pt"}))
        for elements in data:
            stream.write(elements)
        _sync(stream)


def finish(temporary: Path, folder: Path, *, described: Description, effort: BestEffort | None = None) -> str:
    """Complete an export and put it into place; return remarks on it, such as
    `, replacing the export of step 60`.

    Files in an earlier export that planc did not write are kept, unless the new one has a file of that name.
    """
    with storage_errors(f"cannot complete {folder}"):
        _write_config(temporary, described)
        for name in _KEPT:
            if (described.source / name).is_file():
                _write(temporary / name, (described.source / name).read_bytes())
        lacks_tokenizer = _write_tokenizer(temporary, described)
        if len(described.files) > 1:
            _write_json(temporary / _INDEX, _index(described.files))
    return _put_into_place(temporary, folder, described.origin, effort, lacks_tokenizer=lacks_tokenizer)


def finish_adapter(
    temporary: Path,
    folder: Path,
    *,
    config: Mapping[str, Any],
    origin: Mapping[str, Any],
    effort: BestEffort | None = None,
) -> str:
    """Complete an export of adapters and put it into place, as `finish` does."""
    with storage_errors(f"cannot complete {folder}"):
        _write_json(temporary / ADAPTER_CONFIG, config)
    return _put_into_place(temporary, folder, origin, effort)


def _put_into_place(
    temporary: Path,
    folder: Path,
    origin: Mapping[str, Any],
    effort: BestEffort | None,
    *,
    lacks_tokenizer: str = "",
) -> str:
    with storage_errors(f"cannot complete {folder}"):
        written = sorted((*(path.name for path in temporary.iterdir()), ORIGIN_NAME))
        _write_json(temporary / ORIGIN_NAME, {**origin, "files": written})
        replaced = exported_step(folder)
        kept = _keep_foreign(folder, temporary) if replaced is not None else ()
        fsync_directory(temporary)
        if replaced is not None:
            rename(folder, _aside(folder))
        rename(temporary, folder)
        fsync_directory(folder.parent)
    if replaced is not None:
        effort, aside = effort or BestEffort(), _aside(folder)
        effort.attempt(f"delete {aside}", partial(delete, aside, effort=effort))
    return _said(replaced, kept=kept, lacks_tokenizer=lacks_tokenizer)


def _write_tokenizer(temporary: Path, described: Description) -> str:
    """Write the plan's tokenizer, or else the model's own; why there is none, or nothing."""
    files, source = described.tokenizer, described.source
    if files is None:
        files = {name: (source / name).read_bytes() for name in tokenizer_files(source)}
    # The model's configuration is that of the export.
    names = [name for name in files if name != _CONFIG]
    for name in names:
        (temporary / name).parent.mkdir(exist_ok=True)
        _write(temporary / name, files[name])
    if names:
        return ""
    return f"none in {os.path.normpath(source)}" if described.tokenizer is None else "the plan's is missing"


def _keep_foreign(earlier: Path, temporary: Path) -> tuple[str, ...]:
    """Copy what planc did not write from an earlier export into the new one; return its names."""
    origin = loads(read_utf8(earlier / ORIGIN_NAME, max_bytes=MAX_ORIGIN_BYTES))
    # An export without a list is of an earlier planc.
    known = {_CONFIG, _INDEX, ORIGIN_NAME, *_KEPT, *tokenizer_files(earlier)}
    known = set(origin["files"]) if "files" in origin else known
    kept = []
    for path in sorted(earlier.iterdir()):
        target = temporary / path.name
        if path.name in known or _WEIGHTS.fullmatch(path.name) or os.path.lexists(target):
            continue
        if kind_of(path) == "directory":
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy2(path, target, follow_symlinks=False)
        kept.append(path.name)
    return tuple(kept)


def _said(replaced: int | None, *, kept: Sequence[str], lacks_tokenizer: str) -> str:
    parts = [f", replacing the export of step {replaced}"] if replaced is not None else []
    parts += [f", with {', '.join(kept)} of it"] if kept else []
    if lacks_tokenizer:
        parts.append(f"; without a tokenizer: {lacks_tokenizer}")
    return "".join(parts)


def _aside(folder: Path) -> Path:
    """Return the path that keeps an earlier export while the new one takes its place."""
    return folder.with_name(f"{folder.name}.old.tmp")


def exported_step(folder: Path) -> int | None:
    """The step of an export; None if there isn't one. CheckpointError for anything else."""
    kind = kind_of(folder)
    if kind is None:
        return None
    try:
        if kind != "directory":
            raise NotPlainError(folder, kind=kind, wanted="directory")
        return int(loads(read_utf8(folder / ORIGIN_NAME, max_bytes=MAX_ORIGIN_BYTES))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{folder} is not an export of a run, and the new export would replace it",
            help="move it away, or choose another directory",
        ) from None


def _write_config(temporary: Path, described: Description) -> None:
    config = json.loads((described.source / _CONFIG).read_text(encoding="utf-8"))
    # The exported weights are not quantized; with this entry transformers would read them as if they were.
    config.pop("quantization_config", None)
    # Names a file of the directory that the weights came from.
    config.pop(NAMED_BY_CONFIG, None)
    _write_json(temporary / _CONFIG, {**config, **described.config})


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
