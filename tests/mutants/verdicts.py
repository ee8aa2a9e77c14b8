"""What planc says of a plan before it runs, and what a plan breaks that no run on tiny models can show."""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from planc.api import check_plan
from planc.deep_check.check import check_deep
from planc.diagnostics import Diagnostic, Severity
from planc.estimate.estimate import estimate
from planc.plan.bind import BoundPlan
from planc.plan.facts import facts
from planc.source import SourceFile
from planc.styles.edges import normal
from planc.vocab import Placement

Verdict = Callable[[Path], tuple[str, ...]]
"""The codes of the errors that a depth of checking finds in a plan; none means that it lets the plan pass."""


def static(path: Path) -> tuple[str, ...]:
    """`planc check`."""
    return _errors(check_plan(path).diagnostics)


def deep(path: Path) -> tuple[str, ...]:
    """What `planc check --deep` finds beyond that."""
    checked = check_plan(path)
    if checked.graph is None or checked.inventory is None:
        return ()
    found = check_deep(
        checked.graph,
        base=path.parent,
        estimate=estimate(checked.graph, checked.inventory),
        cache_dir=path.parent / "inventories",
        nowhere=SourceFile(path.name, "").start(),
    )
    return _errors(found.diagnostics)


def _errors(diagnostics: Iterable[Diagnostic]) -> tuple[str, ...]:
    return tuple(sorted({one.code.code for one in diagnostics if one.severity is Severity.ERROR}))


VERDICTS: Mapping[str, Verdict] = {"static": static, "deep": deep}
"""Depths of checking, each on top of those before it."""


def codes_of(path: Path, depth: str) -> tuple[str, ...]:
    """What a depth finds in a plan; an exception is a finding, of a bug in planc."""
    try:
        return VERDICTS[depth](path)
    except Exception as error:
        return (f"{RAISED}{type(error).__name__}",)


RAISED = "raised "

ON_PURPOSE: Mapping[str, str] = {
    "P203": "a rule or a choice in it has no effect",
    "P220": "a rule leaves out some of a repeated block's layers",
    "P221": "two rules for one name say different things",
    "P240": "an import has no effect",
    "P305": "ranks do not fill whole nodes",
    "P306": "ranks of a mesh dim all compute the same",
    "P405": "the style is meant for other modules, and what planc shows of it would be wrong",
    "P412": "a part of the model's own plan would be left out",
    "P413": "nothing is sharded over tp",
    "P420": "a rule names a module that never runs",
    "P501": "a list of modules never runs, so that its unit gathers nothing",
    "P504": "two units claim one module",
    "P701": "a step has other tokens than the plan says",
    "P702": "an expectation does not hold",
    "P704": "positions lie beyond what the model was made for",
    "P705": "ids of the tokenizer may lie beyond the vocabulary",
    "P706": "the schedule never reaches its peak, or never leaves it",
    "P711": "nothing is trained",
    "P713": "weight decay alone turns weights over",
    "P801": "a recomputed list of modules recomputes nothing",
    "P810": "the plan's device is too small, and the run is on another",
}
"""Errors that equal numbers cannot excuse: plans that say one thing and do another, wasted ranks."""

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def broken_promises(bound: BoundPlan) -> Iterator[str]:
    """What a plan says and does not do, though a run may look right. Worked out apart from the checks."""
    plan, known = bound.plan, facts(bound.plan, bound.inventory)
    for expectation in plan.expectations:
        if not _OPERATORS[expectation.operator](known[expectation.subject], expectation.value):
            yield f"{expectation.subject} is {known[expectation.subject]}"
    sequences = plan.data.micro_batch * plan.mesh.dp_size * plan.data.sequence_length
    if plan.train.tokens_per_step is not None and plan.train.tokens_per_step % sequences:
        yield "tokens_per_step does not divide into micro batches"
    positions = bound.inventory.max_positions
    if positions is not None and plan.data.sequence_length > positions:
        yield "the sequence is longer than the model's positions"
    for selection in bound.selections:
        for text in _spelled_out(selection.pattern.text):
            if "**" not in text and not any(_fits(name, text) for name in selection.names):
                yield f"{text} matches nothing"

    yield from _misdeclared(bound)


def _misdeclared(bound: BoundPlan) -> Iterator[str]:
    """Rules whose `input` is not what the rules before them leave: right numbers then come by luck.

    torch takes a DTensor as it comes, and a norm computes the same whichever dimension it believes divided.
    """
    for fqn, assignment in bound.styles.items():
        module = bound.inventory.get(fqn)
        assert module is not None, "styles are of modules of this inventory"
        if not module.parameters or bound.plan.mesh.tp == 1:
            continue
        arriving = {_arriving(bound, source, consumer=fqn) for source in module.sources} - {None}
        told = normal(assignment.use.input)
        if len(arriving) == 1 and told not in arriving:
            yield f"{fqn} is told {told} and gets {arriving.pop()}"


def _arriving(bound: BoundPlan, source: str, *, consumer: str) -> Placement | None:
    """In which layout rules say that one module's output reaches another; None where none says."""
    parts = consumer.split(".")
    for end in range(len(parts) - 1, 0, -1):
        gate = ".".join(parts[:end])
        assignment = bound.styles.get(gate)
        is_entry = assignment is not None and assignment.style.name.startswith("prepare_input")
        if assignment and is_entry and not source.startswith(f"{gate}."):
            return normal(assignment.use.computes_on)
    inner = source.split(".")
    # The outermost module that the value leaves comes last.
    left = (".".join(inner[:end]) for end in range(1, len(inner)))
    exits = (one for one in left if not consumer.startswith(f"{one}.") and _states_output(bound, one))
    styled = bound.styles.get(next(exits, source))
    return normal(styled.use.output) if styled else None


def _states_output(bound: BoundPlan, fqn: str) -> bool:
    assignment = bound.styles.get(fqn)
    return assignment is not None and assignment.style.name == "prepare_input_output"


def _fits(name: str, pattern: str) -> bool:
    segments, wanted = name.split("."), pattern.split(".")
    return len(segments) == len(wanted) and all(map(fnmatch.fnmatchcase, segments, wanted))


def _spelled_out(pattern: str) -> tuple[str, ...]:
    """A pattern without braces, once for each combination of their choices."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(part) if index % 2 else [part] for index, part in enumerate(parts)]
    return tuple("".join(chosen) for chosen in itertools.product(*choices))


def _choices(text: str) -> list[str]:
    if found := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        return [str(number) for number in range(int(found[1]), int(found[2]) + 1)]
    return text.split(",")
