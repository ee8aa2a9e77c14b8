"""Parts of the model's own plan that `auto` cannot take."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.families import quoted
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.bind import parse_own
from planc.styles import STYLES
from planc.vocab import MeshDim

CODE = Code("P412", "auto-style-unknown", "the model's own plan uses a style that planc does not know")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `auto` for all patterns that no rule of the plan takes over."""
    spec = subject.plan.tensor_parallel
    if spec is None or spec.auto is None:
        return
    styled, names = subject.bound.styles, subject.inventory.names()
    left = [
        (pattern, style)
        for pattern, style in subject.bound.unknown_styles
        if not all(fqn in styled for fqn in parse_own(pattern, spec.auto).select(names))
    ]
    if left:
        yield CODE.at(
            spec.auto,
            f"{subject.inventory.architecture} asks for {quoted(dict.fromkeys(style for _, style in left))}",
            notes=tuple(f'"{pattern}" -> {style}' for pattern, style in left),
            help=f"add rules for these modules; planc has {', '.join(style.name for style in STYLES)}",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP)
