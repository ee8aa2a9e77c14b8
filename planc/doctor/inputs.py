"""The weight, tokenizer and data files of a run, which `planc check` does not open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.data_sources import Source
from planc.diagnostics import Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.graph.graph import Graph
from planc.graph.ops import LoadWeights, Mixture, OpenData
from planc.graph.sources import name_of, sources_of
from planc.hub.names import is_hub, model_folder
from planc.hub.tokenizer_files import holds_tokenizer, tokenizer_files, tokenizer_folder
from planc.runtime.data.errors import DataError
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_files
from planc.source import SourceFile, Span
from planc.tables import format_bytes, plural


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
        match op:
            case LoadWeights() if not is_hub(op.path):
                yield _weights(op, base)
            case _:
                pass
    for op in sources_of(graph):
        if not isinstance(op.source, Mixture) and op.source.reads_local_files:
            yield _data("data" if isinstance(op, OpenData) else name_of(op), op.source, op.span, base)


def _weights(op: LoadWeights, base: Path) -> Input:
    try:
        files = weight_files(model_folder(op.path, base=base))
    except RunError as error:
        return Input("weights", error.message, op.span, error.help or "add the missing files")
    paths = {files} if isinstance(files, Path) else set(files.values())
    return Input("weights", _summary(paths), op.span)


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
    for one in inputs:
        observed = SourceFile(one.name, "absent" if one.help else one.found)
        if not one.help:
            yield Check(Section.STORAGE, observed)
            continue
        label = Label(observed.whole(), "")
        at = one.span or observed.whole()
        problem = codes.NO_INPUT.at(at, one.found, secondary=(label,) if one.span else (), help=one.help)
        yield Check(Section.STORAGE, observed, "readable when the run starts", problems=(problem,))
