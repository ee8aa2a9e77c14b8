"""Convert checkpoints to plain DCP and from it, with one tensor in memory at a time.

In DCP planc's tensors have the names that torch's own tools give them: `model.<fqn>`, and for the optimizer's
state `optimizer.state.<fqn>.exp_avg`, which is `optimizer.<fqn>.exp_avg` in a manifest. The manifest's facts
are an object, `planc`, and the plan that saved it is another, `planc_plan`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.api import CheckpointException
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
from planc.runtime.checkpoint_format.part import chunks_of
from planc.runtime.checkpoint_format.part_files import write_part
from planc.runtime.checkpoint_format.verify import read_manifest, read_plan_text, verify
from planc.runtime.torch.checkpoint.agreement import combined
from planc.runtime.torch.checkpoint.chunks import ChunkReader, is_bitwise_equal
from planc.runtime.torch.checkpoint.dcp_files import DcpReader
from planc.runtime.torch.checkpoint.foreign import ModelNames, refuse_misfit, without_ties
from planc.runtime.torch.checkpoint.loading import refuse_damage
from planc.runtime.torch.checkpoint.planning import whole_tensors
from planc.runtime.torch.checkpoint.saving import as_bytes

FACTS = "planc"
"""The object in DCP that holds a manifest without its tensors and files, as JSON."""
PLAN = "planc_plan"
"""The object in DCP that holds the checkpoint's compiled plan."""
_MODEL = "model."
_STATE = "optimizer.state."
_OPTIMIZER = "optimizer."


def to_dcp(directory: Path, *, folder: Path) -> Manifest:
    """Convert the checkpoint in `directory` to plain DCP in `folder`; return its manifest.

    All of it is verified first, and DCP's files are read back and compared, bit by bit.
    CheckpointError if `folder` exists.
    """
    manifest = read_manifest(directory)
    refuse_damage(directory, manifest=manifest)
    temporary = folder.with_name(f"{folder.name}.tmp")
    with storage_errors(f"cannot write {folder}"):
        for path in (folder, temporary):
            if os.path.lexists(path):
                raise CheckpointError(
                    f"{path} already exists", help="choose a directory that does not exist yet"
                )
        commit.make_durable(temporary)
    try:
        plan = read_plan_text(directory, manifest=manifest)
        _write_dcp(ChunkReader(directory, manifest), manifest, plan=plan, folder=temporary)
        with storage_errors(f"cannot write {folder}"):
            temporary.rename(folder)
            commit.fsync_directory(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return manifest


def from_dcp(
    folder: Path,
    *,
    root: Path,
    prefixes: Mapping[str, str],
    facts: Manifest | None,
    model: ModelNames | None = None,
) -> tuple[Path, tuple[str, ...]]:
    """The committed `root/step-N` of the DCP checkpoint in `folder`, and the objects that were left out.

    `facts` come from a manifest without tensors; without them, those that `to_dcp` has written are used. With
    the names of a `model`, the tensors must be its parameters, buffers and optimizer states, tied ones once.
    `prefixes` map prefixes of names in DCP to prefixes of planc's names. Nothing that is unpickled from
    `folder` can run code; CheckpointError for anything that would, and for incomplete tensors.
    """
    index = read_dcp_index(folder, limits=Limits())
    refuse_implausible(folder, index=index)
    reader = DcpReader(folder, index=index)
    if facts and FACTS in index.objects:
        raise CheckpointError(f"{folder} already records its step", help="leave out --step")
    facts = facts or _facts(reader, index, folder=folder)
    sources = _sources(index, prefixes=prefixes)
    if model is not None:
        sources = without_ties(sources, model, read=reader.tensor)
        refuse_misfit({name: index.tensors[source].shape for name, source in sources.items()}, model)
    commit.begin(root, step=facts.step)
    try:
        plan = _kept_plan(reader, index, folder=folder)
        directory = _write_planc(reader, index, sources=sources, root=root, facts=facts, plan=plan)
    except BaseException:
        commit.abandon(root, step=facts.step)
        raise
    if problems := verify(directory):
        raise CorruptCheckpointError(
            f"{directory} reads back differently from what was written: {problems[0]}", help="check its disk"
        )
    return directory, tuple(sorted(index.objects.keys() - {FACTS, PLAN}))


def _write_dcp(chunks: ChunkReader, manifest: Manifest, *, plan: str | None, folder: Path) -> None:
    names = {_dcp_name(name): name for name in manifest.tensors}
    objects = {FACTS: facts_of(manifest), **({PLAN: plan} if plan is not None else {})}

    def read(fqn: str) -> object:
        return objects[fqn] if fqn in objects else chunks.whole(names[fqn])

    state: dict[str, Any] = dict(objects)
    for fqn, name in names.items():
        entry = manifest.tensors[name]
        state[fqn] = _stand_in(entry.shape, dtype=entry.dtype)
    _save_plainly(_nested(state), folder=folder, planner=_LazyPlanner(read))
    index = read_dcp_index(folder, limits=Limits(), is_own=True)
    written = DcpReader(folder, index=index)
    for fqn, name in names.items():
        if not is_bitwise_equal(written.tensor(fqn), chunks.whole(name)):
            raise CorruptCheckpointError(
                f"{folder}: {fqn} reads back differently from what was written", help="check its disk"
            )


def _save_plainly(state: dict[str, Any], *, folder: Path, planner: DefaultSavePlanner) -> None:
    # One file by one thread: if a disk is full, a second thread's error is lost.
    writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1)
    try:
        with storage_errors(f"cannot write {folder}"), _dcp_errors():
            dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
            _fsync(folder)
    # Raised by torch's archive writer if the system refuses.
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise CheckpointStorageError(
            f"DCP could not write {folder}: {reason}", help="check that the file system has free space"
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
    shapes = {
        name: (index.tensors[source].shape, index.tensors[source].dtype) for name, source in sources.items()
    }
    contents = whole_tensors(shapes)
    chunks = chunks_of(contents, rank=0)
    data = (as_bytes(reader.tensor(sources[chunk.tensor])) for chunk in chunks)
    parts = (write_part(temporary, chunks, data, step=facts.step, rank=0),) if chunks else ()
    # Validated again, because a copy is not.
    fields = {**dict(facts), "contents": contents, "parts": parts}
    commit.finish(temporary, manifest=Manifest(**fields), plan=plan)
    return step_directory(root, step=facts.step)


class _LazyPlanner(DefaultSavePlanner):
    """DCP's planner, which calls `read` for each object by name only when it is written."""

    def __init__(self, read: Callable[[str], object]) -> None:
        super().__init__()
        self._read = read

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._read(index.fqn)


def _stand_in(shape: tuple[int, ...], *, dtype: str) -> Tensor:
    """A tensor with a shape and dtype but without memory, for DCP's planning."""
    return torch.empty((), dtype=getattr(torch, dtype)).expand(shape)


def _facts(reader: DcpReader, index: DcpIndex, *, folder: Path) -> Manifest:
    if FACTS not in index.objects:
        raise CheckpointError(
            f"{folder} does not record its step: planc did not write it",
            help="pass --step N, and --model DIR with the model's config.json",
        )
    facts = reader.object(FACTS)
    try:
        return parse_facts(facts)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{folder}: its object `{FACTS}` is not what planc writes",
            help="pass its step: --step N",
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
    """The name in DCP of each tensor, by planc's. CheckpointError if two get one name."""
    sources: dict[str, str] = {}
    for source in index.tensors:
        name = _planc_name(source, prefixes=prefixes)
        if name in sources:
            raise CheckpointError(
                f"{sources[name]} and {source} would both be {name}",
                help="rename one of them: --rename OLD=NEW",
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
    """Nested dicts as in torch's tools: `model` by fqn, and of `optimizer` the `state` by fqn."""
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
    """Make DCP's files durable: DCP syncs before it has written everything."""
    for path in folder.iterdir():
        # Windows syncs only what is open for writing.
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())
    commit.fsync_directory(folder)


@contextmanager
def _unwarned() -> Iterator[None]:
    # Only here: it changes the filters of every thread, and saves may run during training.
    with warnings.catch_warnings():
        # Here one process without a process group is intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextmanager
def _dcp_errors() -> Iterator[None]:
    """Raise one CheckpointError if ranks failed with CheckpointErrors, else a RuntimeError."""
    try:
        with contextlib.nullcontext() if dist.is_initialized() else _unwarned():
            yield
    except CheckpointException as failure:
        errors = {rank: wrapped[0] for rank, wrapped in failure.failures.items()}
        failures = {rank: error for rank, error in errors.items() if isinstance(error, CheckpointError)}
        if len(failures) < len(errors):
            # DCP's own error is a BaseException, which no error handler would catch.
            raise RuntimeError(str(failure)) from failure
        raise combined(failures) from failure
