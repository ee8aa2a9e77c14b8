"""The contents of a plain DCP checkpoint, by its metadata: a pickle, which only a confined process reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from planc.runtime.checkpoint_format import unpickle_dcp
from planc.runtime.checkpoint_format.coverage import coverage_problem
from planc.runtime.checkpoint_format.errors import CheckpointError, CorruptCheckpointError, storage_errors
from planc.runtime.checkpoint_format.manifest import Manifest, without_tensors
from planc.runtime.checkpoint_format.part_files import open_beneath
from planc.runtime.checkpoint_format.records import Count, ElementType, Lengths
from planc.runtime.checkpoint_format.shards import Entry
from planc.strict_json import loads

METADATA_NAME = ".metadata"
_HELP = "convert another checkpoint, or save this one again with the program that created it"

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]
"""One path component without a leading dot, so no name leads out of the directory."""


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Place(_Record):
    """The place of a torch.save record; `is_transformed` if DCP has changed its bytes."""

    file: FileName
    offset_bytes: Count
    length_bytes: Count
    is_transformed: bool


class DcpChunk(_Record):
    """A box of a tensor, in elements, saved as a tensor of its own."""

    offsets: Lengths
    sizes: Lengths
    place: Place


class DcpTensor(_Record):
    """A whole tensor and its chunks; `dtype` as torch calls it, `float32`."""

    dtype: str
    shape: Lengths
    chunks: tuple[DcpChunk, ...]


class DcpIndex(_Record):
    """A checkpoint's tensors, and its other objects, by their names in DCP."""

    tensors: dict[str, DcpTensor]
    objects: dict[str, Place]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the unpickler. A hundred thousand chunks take an eighth of the memory, and a second."""

    metadata_bytes: int = 256 * 2**20
    memory_bytes: int = 4 * 2**30
    cpu_seconds: int = 60
    index_bytes: int = 2**30


def facts_of(manifest: Manifest) -> str:
    """A manifest without its tensors, files and plan, as JSON."""
    return without_tensors(manifest).model_dump_json()


def parse_facts(facts: object) -> Manifest:
    """The manifest without tensors from which `facts_of` made `facts`; ValueError for anything else."""
    if not isinstance(facts, str):
        raise ValueError(f"a {type(facts).__name__}")
    loads(facts)
    return Manifest.model_validate_json(facts)


def read_dcp_index(folder: Path, *, limits: Limits, is_own: bool = False) -> DcpIndex:
    """The contents of the checkpoint in `folder`. CheckpointError for metadata that is not DCP's.

    Windows can't confine the process that reads it: there it reads only what this process has written.

    No name in the pickle is called or imported (`unpickle_dcp`).
    """
    try:
        return DcpIndex.model_validate_json(_unpickled(folder, limits=limits, is_own=is_own))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptCheckpointError(
            f"{folder / METADATA_NAME} is not valid DCP metadata: {place}: {first['msg']}", help=_HELP
        ) from error


def refuse_implausible(folder: Path, *, index: DcpIndex) -> None:
    """CorruptCheckpointError if reading would take more memory than the files have bytes, or leave gaps.

    Every element must be in one chunk, every chunk in as many bytes as it needs, and no byte may serve two:
    so no small file makes large tensors. Files are inspected, not read.
    """
    read_bytes: dict[str, int] = {}
    for name, place in _places(index):
        read_bytes[place.file] = read_bytes.get(place.file, 0) + place.length_bytes
        end = place.offset_bytes + place.length_bytes
        if place.is_transformed or max(end, read_bytes[place.file]) > _size(folder, place.file):
            what = (
                "compressed by an extension"
                if place.is_transformed
                else "outside the file, or overlaps another part"
            )
            raise CorruptCheckpointError(f"{folder / place.file}: {name} is {what}", help=_HELP)
    for name, tensor in index.tensors.items():
        problem = _tensor_problem(tensor)
        if problem is not None:
            raise CorruptCheckpointError(f"{folder / METADATA_NAME}: {name}: {problem}", help=_HELP)


def _places(index: DcpIndex) -> Iterator[tuple[str, Place]]:
    for name, tensor in index.tensors.items():
        yield from ((name, chunk.place) for chunk in tensor.chunks)
    yield from index.objects.items()


def _tensor_problem(tensor: DcpTensor) -> str | None:
    if tensor.dtype not in get_args(ElementType):
        return f"its dtype is {tensor.dtype}; planc stores {', '.join(get_args(ElementType))}"
    dtype = cast(ElementType, tensor.dtype)
    for chunk in tensor.chunks:
        if Entry("", dtype, chunk.sizes).size_bytes > chunk.place.length_bytes:
            return f"a chunk of {list(chunk.sizes)} has only {chunk.place.length_bytes} bytes"
    return coverage_problem(tensor)


def _size(folder: Path, name: str) -> int:
    with storage_errors(f"cannot read {folder / name}"), open_beneath(folder, name=name) as stream:
        return os.fstat(stream.fileno()).st_size


def _unpickled(folder: Path, *, limits: Limits, is_own: bool) -> bytes:
    """The index, as JSON."""
    path = folder / METADATA_NAME
    if os.name != "posix" and not is_own:
        raise CheckpointError(
            f"{path} is a pickle, and Windows can't confine the process that reads it",
            help="convert the checkpoint on Linux or macOS, or in WSL",
        )
    with storage_errors(f"cannot read {folder}"):
        try:
            with open_beneath(folder, name=METADATA_NAME) as stream:
                if os.fstat(stream.fileno()).st_size > limits.metadata_bytes:
                    raise CorruptCheckpointError(f"{path} is larger than metadata can be", help=_HELP)
                return _output(stream.fileno(), path=path, limits=limits)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder} has no {METADATA_NAME}",
                help="pass a directory that torch.distributed.checkpoint has written",
            ) from error


def _output(metadata: int, *, path: Path, limits: Limits) -> bytes:
    """The confined process's output for a descriptor's pickle. It gets no environment, which holds keys."""
    script = str(Path(unpickle_dcp.__file__))
    command = (sys.executable, "-I", "-S", script, str(limits.memory_bytes), str(limits.cpu_seconds))
    pipe = subprocess.PIPE
    # Python does not start on Windows without it.
    environment = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    with subprocess.Popen(
        command, stdin=metadata, stdout=pipe, stderr=pipe, env=environment, cwd="/"
    ) as process:
        assert process.stdout is not None and process.stderr is not None, "both are pipes"
        out = process.stdout.read(limits.index_bytes + 1)
        if len(out) > limits.index_bytes:
            process.kill()
            raise CorruptCheckpointError(f"{path} holds more than metadata can", help=_HELP)
        reason = process.stderr.read().decode(errors="replace")
    if process.returncode == 0:
        return out
    if process.returncode == unpickle_dcp.REFUSED:
        raise CorruptCheckpointError(f"{path} is rejected: {reason}", help=_HELP)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        reason = f"reading it took more than {limits.cpu_seconds} s of CPU time"
    raise CorruptCheckpointError(f"{path} cannot be read: {reason.strip()[-200:]}", help=_HELP)
