"""Activation checkpointing of a layer's parts instead of the layer."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.source import Span
from planc.vocab import parent_of

CODE = Code("P508", "recomputed-in-pieces", "a layer is recomputed in parts", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning for each set of rules that recompute all large parts of a layer, but not the layer."""
    bound, inventory = subject.bound, subject.inventory
    checkpointed = {fqn: span for fqn, span in bound.checkpointed.items() if fqn not in bound.selective}
    sizes: dict[str, int] = {}
    for fqn, _, parameter in inventory.parameters():
        for block in inventory.blocks:
            if fqn.startswith(f"{block}."):
                part = ".".join(fqn.split(".")[: block.count(".") + 3])
                sizes[part] = sizes.get(part, 0) + parameter.num_elements
    layers: dict[str, list[str]] = {}
    for part in sizes:
        layers.setdefault(parent_of(part), []).append(part)
    seen: set[tuple[Span, ...]] = set()
    for layer, parts in layers.items():
        pieces = [part for part in parts if part in checkpointed]
        rest = sum(sizes[part] for part in parts if part not in pieces)
        if layer in checkpointed or len(pieces) < 2 or rest * 10 > sum(sizes[part] for part in parts):
            continue
        spans = tuple(dict.fromkeys(checkpointed[part] for part in pieces))
        if spans not in seen:
            seen.add(spans)
            block = parent_of(layer)
            yield CODE.at(
                spans[0],
                f"{len(pieces)} parts of each layer each store their input",
                secondary=tuple(Label(span, "and here") for span in spans[1:]),
                notes=("recomputing the whole layer would take the same time and store one input",),
                help=f'write `"{block}.*" -> full`',
            )
