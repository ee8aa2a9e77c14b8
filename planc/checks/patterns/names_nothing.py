"""Blocks that need rules and have none."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.inventory.schema import Kind

CODE = Code("P812", "names-nothing", "a block without rules has no effect", Severity.WARNING)


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for each such block."""
    plan = subject.plan
    layers = next(
        (module.fqn for module in subject.inventory.modules if module.kind is Kind.MODULE_LIST), None
    )
    for block, text, action in (
        (plan.activation_checkpoint, "nothing is recomputed", "full"),
        (plan.compile, "nothing is compiled", "region"),
        (plan.freeze, "nothing is frozen", "frozen"),
        (plan.adapter, "no layer has an adapter, and nothing is trained", "adapted"),
    ):
        if block is not None and not block.rules:
            rule = (
                f'add `"{layers}.*" -> {action}`'
                if layers
                else f'add a rule, such as `"PATTERN" -> {action}`'
            )
            yield CODE.at(block.span, text, help=f"{rule}, or remove the block")
