"""Checkpoints as plain DCP writes them, and from it, one tensor in memory at a time.

In DCP planc's tensors have the names that torch's own tools give them: `model.<fqn>`, and for what the
optimizer keeps `optimizer.state.<fqn>.exp_avg`, where a manifest has `optimizer.<fqn>.exp_avg`. What a
manifest says besides is an object, `planc`, and the plan that saved it is another, `planc_plan`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.dcp import (
    DcpIndex,
    Limits,
    facts_of,
    parse_facts,
    read_dcp_index,
    refuse_implausible,
)
from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
    storage_errors,
)
from planc.runtime.checkpoint_format.layout import step_directory, temporary_directory
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.verify import read_manifest, read_plan_text, verify
from planc.runtime.torch.checkpoint.chunks import ChunkReader, is_bitwise_equal, whole
from planc.runtime.torch.checkpoint.dcp_errors import dcp_errors
from planc.runtime.torch.checkpoint.dcp_files import DcpReader
from planc.runtime.torch.checkpoint.loading import refuse_damage
from planc.runtime.torch.checkpoint.writer import Contents, SafetensorsWriter

FACTS = "planc"
"""The object in DCP that holds a manifest without its tensors and files, as JSON."""
PLAN = "planc_plan"
"""The object that holds the compiled plan which the checkpoint keeps."""
_MODEL = "model."
_STATE = "optimizer.state."
_OPTIMIZER = "optimizer."


def to_dcp(directory: Path, *, folder: Path) -> Manifest:
    """The manifest of the checkpoint in `directory`, which now lies in `folder` as plain DCP too.

    All of it is verified first, and what DCP has written is read back and compared, bit by bit.
    CheckpointError where `folder` exists.
    """
    manifest = read_manifest(directory)
    refuse_damage(directory, manifest=manifest)
    temporary = folder.with_name(f"{folder.name}.tmp")
    with storage_errors(f"cannot write {folder}"):
        for path in (folder, temporary):
            if os.path.lexists(path):
                raise CheckpointError(f"{path} exists already", help="name a folder that is not there yet")
        commit.make_durable(temporary)
    try:
        plan = read_plan_text(directory, manifest=manifest)
        _write_dcp(ChunkReader(directory), manifest, plan=plan, folder=temporary)
        with storage_errors(f"cannot write {folder}"):
            temporary.rename(folder)
            commit.fsync_directory(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return manifest


def from_dcp(
    folder: Path, *, root: Path, prefixes: Mapping[str, str], facts: Manifest | None
) -> tuple[Path, tuple[str, ...]]:
    """The committed `root/step-N` of the DCP checkpoint in `folder`, and the objects that it leaves out.

    `facts` are of a manifest without tensors; without them those that `to_dcp` has written are used.
    `prefixes` are starts of names in DCP and what stands for them in planc's. Nothing of `folder` that is
    unpickled can run code; CheckpointError for what would, and for what is not whole.
    """
    index = read_dcp_index(folder, limits=Limits())
    refuse_implausible(folder, index=index)
    reader = DcpReader(folder, index=index)
    if facts and FACTS in index.objects:
        raise CheckpointError(f"{folder} says itself of which step it is", help="leave out --step")
    facts = facts or _facts(reader, index, folder=folder)
    sources = _sources(index, prefixes=prefixes)
    commit.begin(root, step=facts.step)
    try:
        plan = _kept_plan(reader, index, folder=folder)
        directory = _write_planc(reader, index, sources=sources, root=root, facts=facts, plan=plan)
    except BaseException:
        commit.abandon(root, step=facts.step)
        raise
    if problems := verify(directory):
        raise CorruptCheckpointError(
            f"{directory} is not as it was written: {problems[0]}", help="see to the disk that it lies on"
        )
    return directory, tuple(sorted(index.objects.keys() - {FACTS, PLAN}))


def _write_dcp(chunks: ChunkReader, manifest: Manifest, *, plan: str | None, folder: Path) -> None:
    names = {_dcp_name(name): name for name in manifest.tensors}
    objects = {FACTS: facts_of(manifest), **({PLAN: plan} if plan is not None else {})}

    def read(fqn: str) -> object:
        return objects[fqn] if fqn in objects else whole(chunks, manifest.tensors[names[fqn]])

    state: dict[str, Any] = dict(objects)
    for fqn, name in names.items():
        entry = manifest.tensors[name]
        state[fqn] = _stand_in(entry.shape, dtype=entry.dtype)
    _save_plainly(_nested(state), folder=folder, planner=_LazyPlanner(read))
    index = read_dcp_index(folder, limits=Limits(), is_own=True)
    written = DcpReader(folder, index=index)
    for fqn, name in names.items():
        if not is_bitwise_equal(written.tensor(fqn), whole(chunks, manifest.tensors[name])):
            raise CorruptCheckpointError(
                f"{folder}: {fqn} is not as it was written", help="see to the disk that it lies on"
            )


def _save_plainly(state: dict[str, Any], *, folder: Path, planner: DefaultSavePlanner) -> None:
    # One file by one thread: where a disk is full, a second thread's error is lost.
    writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1)
    try:
        with storage_errors(f"cannot write {folder}"), dcp_errors():
            dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
            _fsync(folder)
    # What torch's writer of archives raises where the system refuses.
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise CheckpointStorageError(
            f"DCP could not write {folder}: {reason}", help="see that the file system has room"
        ) from error


def _write_planc(
    reader: DcpReader,
    index: DcpIndex,
    *,
    sources: Mapping[str, str],
    root: Path,
    facts: Manifest,
    plan: str | None,
) -> Path:
    temporary = temporary_directory(root, step=facts.step)

    def finish(contents: Contents) -> None:
        full = facts.model_copy(update={"tensors": contents.tensors, "files": contents.files})
        commit.finish(temporary, manifest=full, plan=plan)

    state = {
        name: _stand_in(index.tensors[source].shape, dtype=index.tensors[source].dtype)
        for name, source in sources.items()
    }
    planner = _LazyPlanner(lambda name: reader.tensor(sources[name]))
    writer = SafetensorsWriter(temporary, rank=0, commit=finish)
    with dcp_errors():
        dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
    return step_directory(root, step=facts.step)


class _LazyPlanner(DefaultSavePlanner):
    """DCP's planner, which asks `read` for each object by its name when it is written, not before."""

    def __init__(self, read: Callable[[str], object]) -> None:
        super().__init__()
        self._read = read

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._read(index.fqn)


def _stand_in(shape: tuple[int, ...], *, dtype: str) -> Tensor:
    """A tensor of a shape and dtype that takes no memory: DCP plans by it."""
    return torch.empty((), dtype=getattr(torch, dtype)).expand(shape)


def _facts(reader: DcpReader, index: DcpIndex, *, folder: Path) -> Manifest:
    if FACTS not in index.objects:
        raise CheckpointError(
            f"{folder} does not say of which step it is: planc has not written it",
            help="say so: --step N, and --model FOLDER for the model that it is of",
        )
    facts = reader.object(FACTS)
    try:
        return parse_facts(facts)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{folder}: its object `{FACTS}` is not what planc writes",
            help="say of which step it is: --step N",
        ) from error


def _kept_plan(reader: DcpReader, index: DcpIndex, *, folder: Path) -> str | None:
    if PLAN not in index.objects:
        return None
    plan = reader.object(PLAN)
    if not isinstance(plan, str):
        raise CorruptCheckpointError(
            f"{folder}: its object `{PLAN}` is not what planc writes", help="convert the checkpoint again"
        )
    return plan


def _sources(index: DcpIndex, *, prefixes: Mapping[str, str]) -> dict[str, str]:
    """The name in DCP of each tensor, by planc's. CheckpointError where two get one name."""
    sources: dict[str, str] = {}
    for source in index.tensors:
        name = _planc_name(source, prefixes=prefixes)
        if name in sources:
            raise CheckpointError(
                f"{sources[name]} and {source} would both be {name}",
                help="rename them apart: --rename OLD=NEW",
            )
        sources[name] = source
    return sources


def _dcp_name(name: str) -> str:
    return f"{_STATE}{name.removeprefix(_OPTIMIZER)}" if name.startswith(_OPTIMIZER) else name


def _planc_name(source: str, *, prefixes: Mapping[str, str]) -> str:
    renamed = next(
        (new + source[len(old) :] for old, new in prefixes.items() if source.startswith(old)), source
    )
    return f"{_OPTIMIZER}{renamed.removeprefix(_STATE)}" if renamed.startswith(_STATE) else renamed


def _nested(state: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts as torch's tools have them: `model` by fqn, and of `optimizer` the `state` by fqn."""
    nested: dict[str, Any] = {}
    for fqn, value in state.items():
        if fqn.startswith(_STATE):
            parameter, _, name = fqn.removeprefix(_STATE).rpartition(".")
            states = nested.setdefault("optimizer", {}).setdefault("state", {})
            states.setdefault(parameter, {})[name] = value
        elif fqn.startswith(_MODEL):
            nested.setdefault("model", {})[fqn.removeprefix(_MODEL)] = value
        else:
            nested[fqn] = value
    return nested


def _fsync(folder: Path) -> None:
    """Makes DCP's files durable: it syncs before it has written all."""
    for path in folder.iterdir():
        # Windows syncs only what is open for writing.
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())
    commit.fsync_directory(folder)
