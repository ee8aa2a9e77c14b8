"""Evaluation on the training data."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.plan.data import AnySource, DatasetSource, JsonLines, TextFiles, untransformed

CODE = Code("P734", "evaluated-on-training", "an evaluation reads training data", Severity.WARNING)

_OF_FILES = TextFiles | JsonLines | DatasetSource


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each `eval` block whose source, or a pattern of it, is the data's own.

    Only the patterns are compared: a check does not walk the dataset's directories.
    """
    plan = subject.plan
    for label, evaluation in plan.data.eval.items():
        if evaluation.source is None:
            continue
        for path, source in plan.data.training():
            is_same = evaluation.source == source
            shared = next(_shared(evaluation.source, source), None)
            if not is_same and shared is None:
                continue
            yield CODE.at(
                plan.span(f"data.eval.{label}.source"),
                "this is the training data" if is_same else f'`"{shared}"` is among the training data',
                secondary=(Label(plan.span(path), "trained on this"),),
                notes=("its loss would measure how well the model memorized this text",),
                help="name files that are held out of training",
            )


def _shared(evaluated: AnySource, trained: AnySource) -> Iterator[str]:
    """The patterns of an evaluation whose files those of the training match."""
    evaluated, trained = untransformed(evaluated), untransformed(trained)
    if isinstance(evaluated, _OF_FILES) and isinstance(trained, _OF_FILES):
        for pattern in evaluated.patterns:
            if any(_covers(_parts(other), _parts(pattern)) for other in trained.patterns):
                yield pattern


def _parts(pattern: str) -> tuple[str, ...]:
    return tuple(posixpath.normpath(pattern).split("/"))


def _covers(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Whether a glob matches a path, or all that another glob matches: its `*` is one of many characters."""
    reached = {0}  # how many parts of the name the pattern's parts so far can take
    for part in pattern:
        if part == "**":
            reached = set(range(min(reached, default=len(name) + 1), len(name) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(name) and fnmatchcase(name[at], part)}
    return len(name) in reached
