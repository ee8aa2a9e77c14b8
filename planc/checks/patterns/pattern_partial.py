"""Tensor-parallel rules that shard a module in some layers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import as_patterns, family, quoted, runs
from planc.source import Span
from planc.vocab import MeshDim

CODE = Code("P220", "pattern-partial", "a rule covers only some layers of a repeated block")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding for all modules without a rule in the same layers, at their first rule."""
    unruled: dict[tuple[int, ...], list[tuple[str, Span]]] = {}
    for name, layers in _families(subject).items():
        ruled = [span for span in layers.values() if span is not None]
        missing = tuple(layer for layer, rule in layers.items() if rule is None)
        if ruled and missing:
            unruled.setdefault(missing, []).append((name, ruled[0]))
    for missing, modules in unruled.items():
        spans = tuple(dict.fromkeys(span for _, span in modules))
        names = quoted(as_patterns([name for name, _ in modules]))
        yield CODE.at(
            spans[0],
            f"does not cover {_layers(missing)}",
            secondary=tuple(Label(span, "neither does this rule") for span in spans[1:]),
            notes=(f"{names} would stay replicated there",),
            help="write `*` for the layer number, or add rules for the others (`replicate` keeps them whole)",
        )


def _layers(numbers: Sequence[int]) -> str:
    return f"layer{'s' if len(numbers) > 1 else ''} {runs(numbers)}"


def _families(subject: Subject) -> Mapping[str, Mapping[int, Span | None]]:
    """Each layer's rule, by family. Only members of repeated blocks are listed."""
    families: dict[str, dict[int, Span | None]] = {}
    # A module without parameters of its own has nothing to shard.
    of_parameters = {
        family(subject.inventory, fqn)
        for fqn, assignment in subject.bound.styles.items()
        if assignment.style.placed_by_model
    }
    for module in subject.inventory.modules:
        for block in subject.inventory.blocks:
            layer, _, rest = module.fqn.removeprefix(f"{block}.").partition(".")
            if module.fqn.startswith(f"{block}.") and rest and layer.isdecimal():
                assignment = subject.bound.styles.get(module.fqn)
                name = family(subject.inventory, module.fqn)
                if assignment is None and not module.parameters and name in of_parameters:
                    continue
                layers = families.setdefault(name, {})
                layers[int(layer)] = assignment.span if assignment else None
    return families
