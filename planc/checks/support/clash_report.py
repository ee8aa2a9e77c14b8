"""Clashes of the layout flow, grouped for reports: one group per fault, however many layers have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.rule import Subject
from planc.diagnostics import Label
from planc.layouts.families import family
from planc.layouts.flow import Clash, ClashKind
from planc.record import record
from planc.source import Span
from planc.styles.edges import SEQUENCE
from planc.styles.style import Style

_OF_PLACES = (ClashKind.TOKENS_APART, ClashKind.FEATURES_APART, ClashKind.OWN_PARAMETER)
"""Faults of values between modules, whatever the styles of these modules."""


@record
class ClashGroup:
    """Clashes with one cause. `first` is the earliest; the names are of modules, in order of computation."""

    first: Clash
    consumers: tuple[str, ...]
    producers: tuple[str, ...]
    partners: tuple[str, ...]
    style: Style | None
    """The style of the consumers, if they have one."""


def clash_groups(subject: Subject, kind: ClashKind) -> Iterator[ClashGroup]:
    """The clashes of one kind: grouped by layouts and style, and combined values by their producer."""
    groups: dict[tuple[object, ...], list[Clash]] = {}
    for clash in subject.flow.clashes:
        if clash.kind is kind:
            groups.setdefault(_cause(subject, clash), []).append(clash)
    for clashes in groups.values():
        yield ClashGroup(
            first=clashes[0],
            consumers=tuple(dict.fromkeys(clash.consumer for clash in clashes)),
            producers=tuple(dict.fromkeys(fqn for clash in clashes for fqn in clash.producers)),
            partners=tuple(dict.fromkeys(fqn for clash in clashes for fqn in clash.partners)),
            style=subject.style(clashes[0].consumer),
        )


def _cause(subject: Subject, clash: Clash) -> tuple[object, ...]:
    if clash.partners:
        assignment = subject.bound.styles.get(clash.producers[0])
        if assignment is not None and assignment.rule is not None:
            return (assignment.span, clash.arriving, clash.needs)
        return (family(subject.inventory, clash.producers[0]),)
    if clash.kind in _OF_PLACES:
        return (clash.arriving,)
    style = subject.style(clash.consumer)
    return (clash.needs, clash.arriving, style.name if style else None)


def labels_at(spans: Sequence[Span], text: str, *, apart_from: Span | None) -> tuple[Label, ...]:
    """A label at each of `spans` except the primary one."""
    return tuple(Label(span, text) for span in spans if span != apart_from)


def rowwise_for(subject: Subject, fqn: str) -> str:
    """`rowwise`, with the layout of its block's residual stream as its output."""
    for block in subject.inventory.blocks:
        if fqn.startswith(f"{block}."):
            member = subject.inventory.get(".".join(fqn.split(".")[: block.count(".") + 2]))
            stream = subject.flow.leaving.get(member.returns[0]) if member and member.returns else None
            if stream is not None and stream.layout == SEQUENCE:
                return "rowwise(output = Shard(1))"
    return "rowwise"
