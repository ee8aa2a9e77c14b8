"""A teacher's log-probabilities on disk: of its likeliest tokens, at every position of a plan's data.

`part-00000.safetensors` and those after it have as many sequences each as fill 64 MiB, in the order of the
data. For each sequence there are `ids` and `log_probabilities` [sequences, length, top_k], the likeliest
token first, and `crc32` [sequences], of its bytes in both. A header names what they follow from. So a
computation that ends early continues after its last part, and a rank reads the sequences of its own batches.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from planc.graph.ops import OpenTeacher
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.files import plain_files
from planc.strict_json import loads
from planc.tables import plural

IDS, LOG_PROBABILITIES, _CRC32, _HEADER = "teacher_ids", "teacher_log_probabilities", "crc32", "teacher"
_PART_BYTES = 2**26
_HEADER_BYTES = 2**20
_CONTINUE = "run `planc teacher PLAN`, which computes the parts that are missing"


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of stored log-probabilities, from which the parts follow."""

    num_sequences: int
    sequence_length: int
    top_k: int

    @property
    def sequence_bytes(self) -> int:
        """Bytes of a sequence's ids and log-probabilities."""
        return OpenTeacher.row_bytes * self.sequence_length * self.top_k

    @property
    def num_bytes(self) -> int:
        return self.num_sequences * self.sequence_bytes

    @property
    def part_length(self) -> int:
        """Sequences of each part but the last."""
        return max(1, _PART_BYTES // self.sequence_bytes)

    @property
    def num_parts(self) -> int:
        return -(-self.num_sequences // self.part_length)

    def part(self, number: int) -> range:
        """The sequences of a part."""
        first = number * self.part_length
        return range(first, min(first + self.part_length, self.num_sequences))


@dataclass(frozen=True, slots=True)
class StoredTeacher:
    """The log-probabilities of all sequences of a plan's data."""

    folder: Path
    layout: Layout
    _files: dict[int, Any] = field(default_factory=dict)

    def rows(self, sample_ids: np.ndarray) -> Mapping[str, Tensor]:
        """Ids, int32, and log-probabilities, float32, of sequences: each [sequences, length, k].

        RunError for a sequence that can't be read, or that is damaged.
        """
        rows = [self._row(int(sample_id)) for sample_id in sample_ids]
        return {name: torch.cat([row[name] for row in rows]) for name in (IDS, LOG_PROBABILITIES)}

    def _row(self, sequence: int) -> dict[str, Tensor]:
        number, place = divmod(sequence, self.layout.part_length)
        path = part_path(self.folder, number)
        try:
            if number not in self._files:
                self._files[number] = safe_open(path, framework="pt")
            file = self._files[number]
            names = (IDS, LOG_PROBABILITIES, _CRC32)
            row = {name: file.get_slice(name)[place : place + 1] for name in names}
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, str(error)) from error
        if row[_CRC32].item() != _crc32(row[IDS][0], row[LOG_PROBABILITIES][0]):
            raise _unreadable(path, f"sequence {sequence} is damaged")
        return row


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.safetensors"


def write_part(
    folder: Path, number: int, ids: Tensor, log_probabilities: Tensor, origin: Mapping[str, str]
) -> None:
    """Store the sequences of a part, [sequences, length, k] each. OSError if that fails."""
    ids, log_probabilities = ids.to("cpu", torch.int32), log_probabilities.to("cpu", torch.float32)
    crc32 = torch.tensor([_crc32(*row) for row in zip(ids, log_probabilities, strict=True)])
    tensors = {
        IDS: ids.contiguous(),
        LOG_PROBABILITIES: log_probabilities.contiguous(),
        _CRC32: crc32,
    }
    # One key, since safetensors writes several in any order.
    content = save(tensors, metadata={_HEADER: json.dumps(origin, sort_keys=True)})
    plain_files.replace(part_path(folder, number), [content])


def is_stored(folder: Path, number: int, layout: Layout, origin: Mapping[str, str]) -> bool:
    """Whether a part is there, whole as far as its size shows. RunError if it is of another origin."""
    path = part_path(folder, number)
    if plain_files.kind_of(path) is None:
        return False
    try:
        saved, num_bytes = _header(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, str(error)) from error
    if others := sorted(name for name in origin if saved.get(name) != origin[name]):
        raise RunError(
            f"{path} has log-probabilities of other {', '.join(others)}",
            help="name another directory in `logits`, or remove this one",
        )
    if num_bytes != len(layout.part(number)) * (layout.sequence_bytes + 8):
        raise _unreadable(path, "its size is wrong")
    return True


def require_stored(folder: Path, layout: Layout, origin: Mapping[str, str]) -> StoredTeacher:
    """The stored log-probabilities. RunError unless all parts are there, of this origin."""
    missing = [number for number in range(layout.num_parts) if not is_stored(folder, number, layout, origin)]
    if missing:
        raise RunError(
            f"{folder} lacks {plural(len(missing), 'part')} of {layout.num_parts} of the teacher's "
            "log-probabilities",
            help=_CONTINUE,
        )
    return StoredTeacher(folder, layout)


def _header(path: Path) -> tuple[dict[str, str], int]:
    """The origin of a part, and the bytes of its tensors."""
    with plain_files.open_to_read(path) as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _HEADER_BYTES:
            raise ValueError("its header is too long")
        header = loads(stream.read(length))
    return dict(loads(header["__metadata__"][_HEADER])), path.stat().st_size - 8 - length


def _unreadable(path: Path, reason: str) -> RunError:
    return RunError(
        f"{path} can't be read: {reason}",
        code=ExitCode.STORAGE,
        help="remove the file and run `planc teacher PLAN`, which computes it again",
        is_shared=False,
    )


def _crc32(ids: Tensor, log_probabilities: Tensor) -> int:
    return zlib.crc32(log_probabilities.numpy().tobytes(), zlib.crc32(ids.numpy().tobytes()))
