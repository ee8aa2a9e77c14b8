"""Dataset files in a format without a reader."""

from __future__ import annotations

from pathlib import PurePosixPath

from planc.checks.support.rule import Findings, Subject, reports
from planc.data_sources.globs import DATASET_SUFFIXES, HubDataset, without_compression
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.plan.data import HfDataset

CODE = Code("P733", "unknown-data-format", "unknown dataset file format")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each source with patterns for files with an unknown suffix."""
    for path, source in subject.plan.data.sources():
        if not isinstance(source, HfDataset):
            continue
        unknown = [text for text in source.patterns if not _is_known(text)]
        if unknown:
            yield CODE.at(
                subject.plan.span(path),
                f"no reader for {quoted(unknown)}",
                help=f"name files that end in {', '.join(DATASET_SUFFIXES)}, "
                "or write `text(...)` for plain text",
            )


def _is_known(pattern: str) -> bool:
    """A suffix with a glob may match any file. A name without a suffix may be a directory."""
    name = PurePosixPath(without_compression(pattern))
    is_open = any(character in name.suffix for character in "*?[")
    return name.suffix in ("", *DATASET_SUFFIXES) or is_open or HubDataset.of((pattern,)) is not None
