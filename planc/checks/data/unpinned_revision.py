"""Hub datasets that may change between two runs."""

from __future__ import annotations

import re

from planc.checks.support.rule import Findings, Subject, reports
from planc.data_sources.globs import HubDataset
from planc.diagnostics import Code
from planc.plan.data import DatasetSource, HfHub

CODE = Code("P732", "unpinned-revision", "the dataset is not pinned to a commit")

_COMMIT = re.compile("[0-9a-f]{40}")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each Hub repository whose revision is not a commit."""
    for path, source in subject.plan.data.sources():
        hub = HubDataset.of(source.patterns) if isinstance(source, DatasetSource) else None
        revision = source.revision if isinstance(source, HfHub) else hub.revision if hub else None
        if revision is not None and not _COMMIT.fullmatch(revision):
            is_moving = f"`{revision}` is a branch or a tag, which can move"
            yield CODE.at(
                subject.plan.span(path),
                is_moving if revision else "the newest commit of the main branch is read, which can move",
                help="write the commit's 40 hexadecimal digits, as the repository's commit page shows them",
            )
