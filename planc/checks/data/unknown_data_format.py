"""Files of data sets that no reader takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.plan.data import HfDataset
from planc.vocab import DATASET_FORMATS

CODE = Code("P733", "unknown-data-format", "the data set's files are of no known format")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each source with patterns whose files end in no known suffix."""
    for path, source in subject.plan.data.sources():
        if not isinstance(source, HfDataset):
            continue
        unknown = [text for text in source.patterns if not _is_known(PurePosixPath(text).suffix)]
        if unknown:
            yield CODE.at(
                subject.plan.span(path),
                f"{quoted(unknown)}: the suffix tells how a file is read",
                help=f"name files that end in {', '.join(DATASET_FORMATS)}; plain text is `text(...)`",
            )


def _is_known(suffix: str) -> bool:
    """A suffix with a glob in it may be any; what it matches is read by its own."""
    return suffix in DATASET_FORMATS or any(character in suffix for character in "*?[")


RULE = Rule((CODE,), check)
