"""Dataset files in a format without a reader."""

from __future__ import annotations

from pathlib import PurePosixPath

from planc.checks.support.rule import Findings, Subject, reports
from planc.data_sources.globs import DATASET_SUFFIXES, HubDataset, without_compression
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.plan.data import DatasetSource, HfDataset, JsonLines

CODE = Code("P733", "unknown-data-format", "unknown dataset file format")


_DELIMITERS = {".csv": "", ".tsv": ', delimiter="\\t"'}
"""Suffixes of tables of text, and what Python's reader needs for them."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each source with patterns for files that it can't read, by their suffix."""
    for path, source in subject.plan.data.sources():
        if (fault := _fault(source)) is not None:
            text, help = fault
            yield CODE.at(subject.plan.span(path), text, help=help)


def _fault(source: object) -> tuple[str, str] | None:
    """The first fault, with its help. A file of JSON lines may have any name but that of a table."""
    if not isinstance(source, DatasetSource | JsonLines):
        return None
    for pattern in source.patterns:
        suffix = PurePosixPath(without_compression(pattern)).suffix
        if suffix in _DELIMITERS:
            rows = f'csv.DictReader(open("FILE{suffix}", newline=""){_DELIMITERS[suffix]})'
            program = f"import csv, json; [print(json.dumps(row)) for row in {rows}]"
            return f"no reader for {quoted([pattern])}", f"convert it: python -c '{program}' > FILE.jsonl"
    if isinstance(source, HfDataset):
        unknown = [text for text in source.patterns if not _is_known(text)]
        if unknown:
            help = (
                f"name files that end in {', '.join(DATASET_SUFFIXES)}, or write `text(...)` for plain text"
            )
            return f"no reader for {quoted(unknown)}", help
    return None


def _is_known(pattern: str) -> bool:
    """A suffix with a glob may match any file. A name without a suffix may be a directory."""
    name = PurePosixPath(without_compression(pattern))
    is_open = any(character in name.suffix for character in "*?[")
    return name.suffix in ("", *DATASET_SUFFIXES) or is_open or HubDataset.of((pattern,)) is not None
