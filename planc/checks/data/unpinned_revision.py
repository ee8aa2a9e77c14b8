"""Hub datasets that may change between two runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.data import HfHub

CODE = Code("P732", "unpinned-revision", "the dataset is not pinned to a commit")

_COMMIT = re.compile("[0-9a-f]{40}")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each Hub repository whose revision is not a commit."""
    for path, source in subject.plan.data.sources():
        if isinstance(source, HfHub) and not _COMMIT.fullmatch(source.revision):
            yield CODE.at(
                subject.plan.span(path),
                f"`{source.revision}` is a branch or a tag, which can move",
                help="write the commit's 40 hexadecimal digits, as the repository's commit page shows them",
            )


RULE = Rule((CODE,), check)
