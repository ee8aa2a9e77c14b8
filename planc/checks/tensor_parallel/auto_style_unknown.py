"""Styles of the model's own plan that `auto` can't apply."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import quoted
from planc.plan.pattern import parse_own
from planc.source import NOWHERE
from planc.styles.modules import REPLICATE
from planc.vocab import MeshDim

CODE = Code("P412", "auto-style-unknown", "unknown style in the model's own plan")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `auto` for all patterns that no rule of the plan replaces."""
    spec = subject.plan.tensor_parallel
    if spec is None or spec.auto is None:
        return
    styled, names = subject.bound.styles, subject.inventory.names()
    matched = {
        rule: parse_own(rule.pattern, NOWHERE).select(names)
        for rule in dict.fromkeys(subject.bound.unknown_styles)
    }
    left = [one for one, fqns in matched.items() if not all(fqn in styled for fqn in fqns)]
    if left:
        bare = [fqn for one in left for fqn in matched[one] if fqn not in styled]
        yield CODE.at(
            spec.auto.span,
            f"{subject.inventory.architecture} uses {quoted(dict.fromkeys(one.style for one in left))}",
            notes=tuple(f'"{one.pattern}" -> {one.style}' for one in left),
            help=f"{subject.rules_to_add(bare, REPLICATE.name)} to keep them whole, or another style"
            if all(module and module.parameters for module in map(subject.inventory.get, bare))
            else "write rules for all modules to shard, and leave out `auto`",
        )
