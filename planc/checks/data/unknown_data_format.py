"""Dataset files in a format without a reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.plan.data import HfDataset
from planc.vocab import DATASET_FORMATS

CODE = Code("P733", "unknown-data-format", "unknown dataset file format")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each source with patterns for files with an unknown suffix."""
    for path, source in subject.plan.data.sources():
        if not isinstance(source, HfDataset):
            continue
        unknown = [text for text in source.patterns if not _is_known(PurePosixPath(text).suffix)]
        if unknown:
            yield CODE.at(
                subject.plan.span(path),
                f"no reader for {quoted(unknown)}: a file's suffix selects its reader",
                help=f"name files that end in {', '.join(DATASET_FORMATS)}, "
                "or write `text(...)` for plain text",
            )


def _is_known(suffix: str) -> bool:
    """A suffix with a glob may match any file, which is then read by its own suffix."""
    return suffix in DATASET_FORMATS or any(character in suffix for character in "*?[")


RULE = Rule((CODE,), check)
