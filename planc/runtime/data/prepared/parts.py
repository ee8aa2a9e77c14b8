"""The batches that a preparation has tokenized so far, which the next one uses if it is interrupted.

    .parts-KEY/RULES-RANDOM.parts    what one preparer has tokenized, batch by batch, as each was ready

A batch is found by the hash of its documents, wherever they are now, so a changed document costs only its own
batch. Each has a seal over all its bytes: what a crash cut short, or a disk lost, is tokenized again. Nothing
is synced, as losing it costs time only. A preparer adds to a file of its own, so those of machines without a
common lock do not meet. The directory is removed once the data is prepared.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import platform
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from planc import __version__
from planc.runtime.data.encoding.client import Fault, Tokens
from planc.runtime.data.encoding.frames import read_frame, write_frame
from planc.runtime.files.plain_files import create_to_write, open_unbuffered, remove

PARTS = ".parts"
_SUFFIX = ".parts"
_HEAD = struct.Struct("<Q32s32s")
"""The bytes of a part, the hash of its documents, and its seal."""
_PLACE = np.dtype([("key", "<u8"), ("file", "<u4"), ("start", "<u8")])
_ARRAYS = {
    "ids": np.dtype("<u4"),
    "is_target": np.dtype(np.bool_),
    **dict.fromkeys(("classes", "types"), np.dtype("<i4")),
}

Say = Callable[[str], None]
Found = Sequence[Tokens | Fault]


class Parts:
    """The parts of the preparation of one key: those of earlier preparers, and those that this one adds.

    All methods may be called from several threads.
    """

    def __init__(self, root: Path, *, key: str, say: Say) -> None:
        self.folder = parts_folder(root, key)
        self._say = say
        self._lock = threading.Lock()
        self._paths = self._usable()
        self._places = _places(self._paths)
        self._opened: tuple[int, FileIO] | None = None
        self._own: BinaryIO | None = None
        self._is_kept = True
        if len(self._places):
            say(f"resuming an interrupted preparation: {len(self._places):_} batches are tokenized already")

    def find(self, key: bytes) -> Found | None:
        """The tokens of the batch whose documents have this hash; None if it has no sound part."""
        wanted = int.from_bytes(key[:8], "little")
        place = int(np.searchsorted(self._places["key"], wanted))
        while place < len(self._places) and self._places["key"][place] == wanted:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                return self._read(self._places[place], key)
            place += 1
        return None

    def keep(self, key: bytes, found: Found) -> None:
        """Add the tokens of a batch. If the file system can't hold them, the next preparer makes them."""
        content = _packed(found)
        record = _HEAD.pack(len(content), key, _seal(key, content)) + content
        with self._lock:
            if not self._is_kept:
                return
            try:
                self._write(record)
            except OSError as error:
                # What is written already is of use; nothing may follow a record that was cut short.
                self._is_kept = False
                what = f"cannot write to {self.folder}: {error.strerror}"
                self._say(f"{what}; if this preparation is interrupted, it starts over from there")

    def close(self) -> None:
        """Close the files, which stay."""
        with self._lock:
            self._is_kept = False
            for file in (self._own, self._opened[1] if self._opened else None):
                if file is not None:
                    # What could not be flushed is lost with the file.
                    with contextlib.suppress(OSError):
                        file.close()
            self._own = self._opened = None

    def _usable(self) -> tuple[Path, ...]:
        """The files whose tokens would be made in the same way today; others are removed."""
        usable = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if path.name.startswith(f"{_rules()}-"):
                usable.append(path)
            else:
                with contextlib.suppress(OSError):
                    remove(path)
        return tuple(usable)

    def _write(self, record: bytes) -> None:
        if self._own is None:
            self.folder.mkdir(exist_ok=True)
            name = f"{_rules()}-{os.urandom(8).hex()}{_SUFFIX}"
            self._own = create_to_write(self.folder / name)
        self._own.write(record)
        # A process that is killed loses what is in its own memory.
        self._own.flush()

    def _read(self, place: npt.NDArray[Any], key: bytes) -> Found:
        """The part at a place. OSError or ValueError if it is not sound, or another's."""
        number, start = int(place["file"]), int(place["start"])
        with self._lock:
            if self._opened is None or self._opened[0] != number:
                if self._opened is not None:
                    self._opened[1].close()
                self._opened = (number, open_unbuffered(self._paths[number]))
            file = self._opened[1]
            file.seek(start)
            size, found, seal = _HEAD.unpack(file.read(_HEAD.size))
            content = file.read(size)
        if found != key or _seal(key, content) != seal:
            raise ValueError("the part is damaged")
        return _unpacked(content)


def parts_folder(root: Path, key: str) -> Path:
    return root / f"{PARTS}-{key}"


def interrupted(root: Path) -> tuple[Path, ...]:
    """The directories of parts: of preparations at work, or interrupted."""
    return tuple(sorted(root.glob(f"{PARTS}-*")))


def remove_parts(root: Path, key: str, *, say: Say) -> None:
    """Remove the parts of data that is prepared. What can't be removed is reported."""
    folder = parts_folder(root, key)
    try:
        remove(folder)
    except OSError as error:
        say(f"cannot delete {folder}, which is of no more use: {error.strerror}")


@cache
def _rules() -> str:
    """Hexadecimal digits that differ where another planc or Python may make other tokens."""
    content = hashlib.sha256(f"{__version__} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parents[1].glob("**/*.py")):
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def _places(paths: Sequence[Path]) -> npt.NDArray[Any]:
    """Return the places of parts, ascending by the first bytes of their hashes."""
    found = (place for number, path in enumerate(paths) for place in _places_in(path, number))
    return np.sort(np.fromiter(found, dtype=_PLACE), order="key", kind="stable")


def _places_in(path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a file, up to one that is cut short."""
    with contextlib.suppress(OSError), open_unbuffered(path) as file:
        end, start = file.seek(0, os.SEEK_END), 0
        while start + _HEAD.size <= end:
            file.seek(start)
            size, key, _ = _HEAD.unpack(file.read(_HEAD.size))
            if start + _HEAD.size + size > end:
                return
            yield int.from_bytes(key[:8], "little"), number, start
            start += _HEAD.size + size


def _seal(key: bytes, content: bytes) -> bytes:
    return hashlib.sha256(key + content).digest()


def _packed(batch: Found) -> bytes:
    """The tokens and faults of a batch as bytes."""
    tokens = [one for one in batch if isinstance(one, Tokens)]
    arrays = {
        name: [values for token in tokens if (values := getattr(token, name)) is not None] for name in _ARRAYS
    }
    stream = io.BytesIO()
    joined = (np.concatenate([np.empty(0, kind), *arrays[name]]) for name, kind in _ARRAYS.items())
    content = (one.astype(kind).tobytes() for one, kind in zip(joined, _ARRAYS.values(), strict=True))
    write_frame(stream, {"documents": [_header(one) for one in batch]}, *content)
    return stream.getvalue()


def _header(one: Tokens | Fault) -> dict[str, Any]:
    """All that a document has but its arrays, of which it has the lengths."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    for name in _ARRAYS:
        if values.get(name) is not None:
            values[name] = len(values[name])
    return values


def _unpacked(content: bytes) -> Found:
    """The tokens and faults of a batch. ValueError, KeyError or TypeError if the bytes are not theirs."""
    frame = read_frame(io.BytesIO(content))
    if frame is None:
        raise ValueError("the part is cut short")
    documents, values = frame[0]["documents"], frame[1]
    left, start = {}, 0
    for name, kind in _ARRAYS.items():
        length = sum(document.get(name) or 0 for document in documents)
        left[name] = np.frombuffer(values, dtype=kind, count=length, offset=start)
        start += length * kind.itemsize
    batch: list[Tokens | Fault] = []
    for one in documents:
        for name in _ARRAYS:
            if one.get(name) is not None:
                left[name], one[name] = left[name][one[name] :], left[name][: one[name]]
        batch.append(Tokens(**{**one, "ids": one["ids"].astype(np.int64)}) if "ids" in one else Fault(**one))
    return batch
