"""Check whether a plan's exports can be pushed from this machine. Sends nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planc.diagnostics import Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.graph.graph import Graph
from planc.graph.ops import PushExport
from planc.runtime.fetch import is_offline
from planc.source import SourceFile


def pushes_of(graph: Graph) -> tuple[PushExport, ...]:
    """The pushes of a run."""
    return tuple(op for op in graph.save if isinstance(op, PushExport))


def push_checks(
    pushes: Sequence[PushExport], environment: Mapping[str, str], *, has_token: bool
) -> Iterator[Check]:
    """One check of all pushes of a plan, if it has any."""
    if not pushes:
        return
    text = help = ""
    if not has_token:
        text, help = "no token for the Hub is set", "run `hf auth login`, or set HF_TOKEN"
    if is_offline(environment):
        text, help = "HF_HUB_OFFLINE forbids requests to the Hub", "unset HF_HUB_OFFLINE, or remove `push`"
    observed = SourceFile("push", ", ".join(op.target for op in pushes))
    spans = (op.span for op in pushes[:1] if op.span is not None)
    labels = tuple(Label(span, "the plan pushes an export") for span in spans)
    problem = codes.NO_PUSH.at(observed.whole(), text, secondary=labels, help=help)
    required, reason = "a token, and access to the Hub", "the plan pushes an export"
    yield Check(Section.VARIABLES, observed, required, reason, (problem,) if text else ())
