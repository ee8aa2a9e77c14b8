"""Tensor-parallel rules that divide a module in some layers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.checks.families import family, quoted, runs
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.source import Span
from planc.vocab import MeshDim

CODE = Code("P220", "pattern-partial", "a rule covers only some layers of a repeated block")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule: its modules have no rule in other layers."""
    found: dict[Span, list[str]] = {}
    for name, layers in _families(subject).items():
        ruled = [span for span in layers.values() if span is not None]
        if ruled and len(ruled) < len(layers):
            found.setdefault(ruled[0], []).append(name)
    for span, names in found.items():
        layers = _families(subject)[names[0]]
        covered = [layer for layer, rule in layers.items() if rule is not None]
        missing = [layer for layer, rule in layers.items() if rule is None]
        yield CODE.at(
            span,
            f"covers layers {runs(covered)} of {layers and max(layers) + 1}",
            notes=(f"{quoted(names)} has no rule in layers {runs(missing)}, and would stay whole there",),
            help="write `*` for the layer, or add a rule for the others (`replicate` keeps them whole)",
        )


def _families(subject: Subject) -> Mapping[str, Mapping[int, Span | None]]:
    """By family, each layer's rule. Only members of repeated blocks are listed."""
    found: dict[str, dict[int, Span | None]] = {}
    for module in subject.inventory.modules:
        for block in subject.inventory.blocks:
            layer, _, rest = module.fqn.removeprefix(f"{block}.").partition(".")
            if module.fqn.startswith(f"{block}.") and rest and layer.isdecimal():
                assignment = subject.bound.styles.get(module.fqn)
                layers = found.setdefault(family(subject.inventory, module.fqn), {})
                layers[int(layer)] = assignment.span if assignment else None
    return found


RULE = Rule((CODE,), check, over=MeshDim.TP)
