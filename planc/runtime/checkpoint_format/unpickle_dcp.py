"""A confined process that reads the metadata of a DCP checkpoint, a pickle: `.metadata` in, JSON out.

A pickle is a program that calls what it names. Here it may name only the parts of DCP's metadata, and gets
for each a stub that stores its arguments and does nothing; no name is ever looked up in a module.
Should that not hold, the process has no files, no sockets, no other processes, little memory and little time.
It is started by its path with `python -I -S` and imports nothing of planc's: it must stay in this one file.

    python -I -S unpickle_dcp.py MEMORY_BYTES CPU_SECONDS < .metadata > index.json

It exits with REFUSED, and the reason on stderr, for any other pickle.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

REFUSED = 3

_DTYPES = (
    *("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
)


class Inert:
    """A stub for an object of the metadata: its constructor's arguments, and its state."""

    __slots__ = ("arguments", "state")
    state: Any

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


class Metadata(Inert):
    __slots__ = ()


class TensorStorageMetadata(Inert):
    __slots__ = ()


class BytesStorageMetadata(Inert):
    __slots__ = ()


class Other(Inert):
    """A part that is not read here, or whose state is all that is read."""

    __slots__ = ()


_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED: Mapping[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): Metadata,
    (_METADATA, "TensorStorageMetadata"): TensorStorageMetadata,
    (_METADATA, "BytesStorageMetadata"): BytesStorageMetadata,
    (_METADATA, "ChunkStorageMetadata"): Other,
    (_METADATA, "MetadataIndex"): Other,
    (_METADATA, "StorageMeta"): Other,
    (_METADATA, "TensorProperties"): Other,
    (_METADATA, "_MEM_FORMAT_ENCODING"): Other,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): Other,
    ("torch.serialization", "_get_layout"): Other,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): dict,
    ("pathlib", "PosixPath"): Other,
    ("pathlib._local", "PosixPath"): Other,
    **{("torch", dtype): dtype for dtype in _DTYPES},
}
"""Every name that a pickle may use, and its stub: the metadata of torch 2.11 to 2.15 has no others."""


class ForeignName(Exception):
    """The pickle names something that is not part of DCP metadata."""


class InertUnpickler(pickle.Unpickler):
    """Unpickles into stubs. ForeignName for any name that is not among the allowed ones."""

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ForeignName(f"{module}.{name}") from None


def index(metadata: Metadata) -> dict[str, Any]:
    """Tensors and other objects by name, and the place of each part. KeyError or similar if malformed."""
    places = dict(_places(metadata.state["storage_data"]))
    tensors, objects = {}, {}
    for fqn, entry in metadata.state["state_dict_metadata"].items():
        if isinstance(entry, BytesStorageMetadata):
            objects[fqn] = places[fqn, None]
            continue
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{fqn} is neither a tensor nor bytes")
        tensors[fqn] = {
            "dtype": entry.state["properties"].state[0],
            "shape": entry.state["size"],
            "chunks": [
                {**chunk.state, "place": places[fqn, chunk.state["offsets"]]}
                for chunk in entry.state["chunks"]
                # The last ranks may hold nothing of a short tensor dim.
                if 0 not in chunk.state["sizes"]
            ],
        }
    return {"tensors": tensors, "objects": objects}


def _places(storage: Mapping[Other, Other]) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], Any]]:
    for key, info in storage.items():
        place = {
            "file": info.state["relative_path"],
            "offset_bytes": info.state["offset"],
            "length_bytes": info.state["length"],
            "is_transformed": bool(info.state.get("transform_descriptors")),
        }
        yield (key.state["fqn"], key.state.get("offset")), place


def confine(*, memory_bytes: int, cpu_seconds: int) -> None:
    """Take from this process everything that reading its standard input does not need.

    On Windows this does nothing: there the process reads only what its parent has written itself.
    """
    if sys.platform == "win32":
        return
    import resource  # the parent process imports this module too

    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        # No new descriptor: no file, no pipe, no socket.
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def main() -> int:
    """0 with the index on stdout, or REFUSED with the reason on stderr."""
    confine(memory_bytes=int(sys.argv[1]), cpu_seconds=int(sys.argv[2]))
    try:
        metadata = InertUnpickler(io.BytesIO(sys.stdin.buffer.read())).load()
        text = json.dumps(index(metadata))
    except ForeignName as error:
        return _refuse(f"it names {error}, which DCP metadata never does")
    except (MemoryError, RecursionError):
        return _refuse("it requests more memory than metadata needs")
    # A pickle that is not metadata can fail with any error.
    except Exception as error:
        return _refuse(f"it is not DCP metadata ({type(error).__name__})")
    sys.stdout.write(text)
    return 0


def _refuse(reason: str) -> int:
    # A pipe holds this much before it is read.
    sys.stderr.write(reason[:500])
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
