"""Checks of the run directory, and of the weight, tokenizer and data files of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.data_sources import Source
from planc.diagnostics import Diagnostic, Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.doctor.machine import Storage
from planc.doctor.needs import Needs, Saves
from planc.graph.graph import Graph
from planc.graph.ops import ComputeReference, LoadWeights, Mixture, OpenData, OpenTeacher
from planc.graph.sources import name_of, sources_of
from planc.hub.names import is_hub, model_folder
from planc.hub.tokenizer_files import holds_tokenizer, tokenizer_files, tokenizer_folder
from planc.runtime.data.errors import DataError
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_files
from planc.runtime.run_directory.obstacles import Obstacle
from planc.source import SourceFile, Span
from planc.tables import format_bytes, plural

_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat", "apfs")
"""File systems that belong to one machine; others may be shared."""
_SKEW_SECONDS = 60.0


def storage_checks(
    storage: Storage,
    *,
    needs: Needs | None,
    num_kept: int = 0,
    num_nodes: int = 1,
    obstacles: Sequence[Obstacle] = (),
) -> Iterator[Check]:
    """Check the run directory, which has `num_kept` checkpoints already."""
    if storage.refusal is not None:
        yield unwritable(storage)
        return
    yield Check(Section.STORAGE, SourceFile("run folder", str(storage.path)), "writable")
    if obstacles:
        yield blocked(storage, obstacles)
    yield room(storage, saves=needs.saves if needs else None, num_kept=num_kept)
    yield _file_system(storage, needs=needs, num_nodes=num_nodes)
    yield _skew(storage)


def unwritable(storage: Storage) -> Check:
    """The check of a directory that can't be written."""
    observed = SourceFile("run folder", str(storage.path))
    text = f"{storage.existing}: {storage.refusal}"
    help = "choose another directory with --run-dir, or give this user write permission"
    problem = codes.UNWRITABLE.at(observed.whole(), text, help=help)
    return Check(Section.STORAGE, observed, "writable", problems=(problem,))


def blocked(storage: Storage, obstacles: Sequence[Obstacle]) -> Check:
    """The check of a directory with entries that would keep a run from saving."""
    observed = SourceFile("saved before", str(storage.path))
    problems = tuple(
        codes.BLOCKED.at(observed.whole(), str(obstacle), help=obstacle.help) for obstacle in obstacles
    )
    return Check(Section.STORAGE, observed, "plain directories", problems=problems)


def room(storage: Storage, *, saves: Saves | None, num_kept: int = 0) -> Check:
    """Check whether the disk has space for what the run will write."""
    observed = SourceFile("disk", f"{format_bytes(storage.free_bytes)} free")
    if saves is None:
        return Check(Section.STORAGE, observed)
    more = max(0, saves.at_once - num_kept)
    wanted = more * saves.num_bytes + saves.export_bytes
    parts = [f"{plural(more, 'checkpoint')} of {format_bytes(saves.num_bytes)}"] if more else []
    parts += [f"an export of {format_bytes(saves.export_bytes)}"] if saves.export_bytes else []
    required = f"{format_bytes(wanted)}: {', '.join(parts)}" if parts else ""
    problems: tuple[Diagnostic, ...] = ()
    if wanted > storage.free_bytes:
        text = f"needs {required}; {storage.existing} has {format_bytes(storage.free_bytes)} free"
        help = "free some space, choose another --run-dir, or lower `checkpoint.keep_last`"
        label = Label(observed.whole(), "")
        problems = (codes.DISK_TOO_SMALL.at(saves.span, text, secondary=(label,), help=help),)
    reason = "for the checkpoints that are kept and the one being written"
    return Check(Section.STORAGE, observed, required, reason, problems)


def _file_system(storage: Storage, *, needs: Needs | None, num_nodes: int) -> Check:
    observed = SourceFile("file system", storage.file_system or "unknown")
    if num_nodes == 1:
        return Check(Section.STORAGE, observed)
    required, reason = f"shared by {num_nodes} machines", "every rank writes its shards of a checkpoint"
    if storage.file_system not in _LOCAL:
        return Check(Section.STORAGE, observed, required, reason)
    assert needs is not None, "only a plan has more than one node"
    text = f"{storage.existing} is {storage.file_system}, but the plan needs {num_nodes} machines"
    help = "put --run-dir on a shared file system; otherwise the run exits at startup"
    label = Label(observed.whole(), text)
    problem = codes.LOCAL_FOLDER.at(needs.mesh, text, secondary=(label,), help=help)
    return Check(Section.STORAGE, observed, required, reason, (problem,))


def _skew(storage: Storage) -> Check:
    seconds = round(storage.clock_skew_seconds)
    observed = SourceFile("file times", f"{abs(seconds)} s {'ahead' if seconds > 0 else 'behind'}")
    if abs(storage.clock_skew_seconds) < _SKEW_SECONDS:
        return Check(Section.STORAGE, observed, f"within {_SKEW_SECONDS:.0f} s")
    text = "the clocks of the file system and this machine differ"
    problem = codes.CLOCK_OFF.at(observed.whole(), text, help="start a time service (chrony, ntpd)")
    return Check(Section.STORAGE, observed, f"within {_SKEW_SECONDS:.0f} s", problems=(problem,))


@dataclass(frozen=True, slots=True)
class Input:
    """Files that a run reads: `found` describes them, or why they can't be read.

    `help` is empty if they can be read. `span` is the place in the plan.
    """

    name: str
    found: str
    span: Span | None
    help: str = ""


def read_inputs(graph: Graph, *, base: Path) -> tuple[Input, ...]:
    """The files that a graph reads, with paths from `base`. Downloads nothing and reads no file whole."""
    return tuple(_inputs(graph, base))


def _inputs(graph: Graph, base: Path) -> Iterator[Input]:
    for op in graph.setup:
        if isinstance(op, OpenData) and op.tokenizer != "bytes":
            yield _tokenizer(op, base)
        if isinstance(op, LoadWeights) and not is_hub(op.path):
            yield _weights("weights", op.path, op.span, base)
        if isinstance(op, ComputeReference) and not op.label and op.path and not is_hub(op.path):
            yield _weights("reference", op.path, op.span, base)
        if isinstance(op, OpenTeacher):
            yield _teacher(op, base)
    for op in sources_of(graph):
        if not isinstance(op.source, Mixture) and op.source.reads_local_files:
            yield _data("data" if isinstance(op, OpenData) else name_of(op), op.source, op.span, base)


def _teacher(op: OpenTeacher, base: Path) -> Input:
    parts = sorted((base / op.path).glob("part-*.safetensors"))
    if not parts:
        help = "run `planc teacher PLAN`, which computes and stores them"
        return Input("teacher", f"{op.path} has no log-probabilities", op.span, help)
    return Input("teacher", _summary({*parts}), op.span)


def _weights(name: str, path: str, span: Span | None, base: Path) -> Input:
    try:
        files = weight_files(model_folder(path, base=base))
    except RunError as error:
        return Input(name, error.message, span, error.help or "add the missing files")
    paths = {files} if isinstance(files, Path) else set(files.values())
    return Input(name, _summary(paths), span)


def _tokenizer(op: OpenData, base: Path) -> Input:
    path = base / op.tokenizer
    folder = tokenizer_folder(path)
    files = {path} if folder is None else {folder / name for name in tokenizer_files(folder)}
    if not path.is_file() and (folder is None or not holds_tokenizer(folder)):
        help = f"write a tokenizer.json there, or correct `data.tokenizer`: {path.absolute()} has none"
        return Input("tokenizer", f"no tokenizer at {op.tokenizer}", op.span, help)
    return Input("tokenizer", _summary(files), op.span)


def _data(name: str, source: Source, span: Span | None, base: Path) -> Input:
    # Imported here, as a light installation has no numpy.
    from planc.runtime.data.prepared.source_files import source_files

    try:
        files = {file.path for file in source_files(source, base=base)}
    except DataError as error:
        return Input(name, error.message, span, error.help)
    return Input(name, _summary(files), span)


def _summary(paths: set[Path]) -> str:
    """The number and total size of files."""
    return f"{plural(len(paths), 'file')}, {format_bytes(sum(path.stat().st_size for path in paths))}"


def input_checks(inputs: Sequence[Input]) -> Iterator[Check]:
    """Check that all files of a run exist."""
    for file in inputs:
        observed = SourceFile(file.name, "absent" if file.help else file.found)
        if not file.help:
            yield Check(Section.STORAGE, observed)
            continue
        label = Label(observed.whole(), "")
        at = file.span or observed.whole()
        problem = codes.NO_INPUT.at(at, file.found, secondary=(label,) if file.span else (), help=file.help)
        yield Check(Section.STORAGE, observed, "readable when the run starts", problems=(problem,))
