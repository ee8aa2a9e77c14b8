"""Every rule: one file each, in a package for each subject, registered in the package's `RULES`."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from planc.checks import (
    adapters,
    context_parallel,
    data,
    expert_parallel,
    fsdp,
    layers,
    mesh,
    model,
    optimizer,
    patterns,
    pipeline,
    run,
    tensor_parallel,
)
from planc.checks.support.rule import Findings, Rule, Subject
from planc.diagnostics import Severity
from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.source import Span
from planc.vocab import MeshDim

RULES: tuple[Rule, ...] = (
    # Tasks and patterns first: later rules skip mere consequences of their findings.
    *model.TASK_RULES,
    *patterns.RULES,
    *mesh.RULES,
    *pipeline.RULES,
    *tensor_parallel.RULES,
    *expert_parallel.RULES,
    *fsdp.RULES,
    *context_parallel.RULES,
    *data.RULES,
    *model.RULES,
    *adapters.RULES,
    *optimizer.RULES,
    *layers.RULES,
    # Memory is last of these.
    *run.RULES,
)


def run_checks(subject: Subject) -> Findings:
    """The findings of all rules, in registration order, without mere consequences of others."""
    reported: set[tuple[str, str]] = set()
    refused: set[Span] = set()
    has_error = False
    # An adapter computes inside of its layer's edges, so rules on layouts don't concern it.
    own = subject.bound.model
    of_layouts = subject if own is subject.inventory else _of(subject, own)
    for rule in RULES:
        is_idle = rule.over is not None and _is_idle(rule.over, subject.plan, refused)
        if is_idle or any((rule.block, code.code) in reported for code in rule.unless):
            continue
        if rule.of_sound and has_error:
            continue
        for diagnostic in rule.check(of_layouts if rule in tensor_parallel.RULES else subject):
            if rule.unless_refused and any(
                label.span in refused for label in (diagnostic.primary, *diagnostic.secondary)
            ):
                continue
            if rule in model.TASK_RULES:
                refused.add(diagnostic.primary.span)
            code = diagnostic.code.code
            reported.update({(_block(subject.plan, diagnostic.primary.span), code), ("", code)})
            has_error = has_error or diagnostic.severity is Severity.ERROR
            yield diagnostic


def _is_idle(over: MeshDim, plan: Plan, refused: Container[Span]) -> bool:
    """Whether a mesh dim has one rank, or would have if the plan did as its task demands."""
    return plan.mesh.size(over) == 1 or plan.span(f"mesh.{over}") in refused


def _of(subject: Subject, inventory: Inventory) -> Subject:
    return replace(subject, bound=replace(subject.bound, inventory=inventory))


def _block(plan: Plan, span: Span) -> str:
    """The outermost block that a span is in: the last one to start before it."""
    starts = {
        (kind_span.line, kind_span.column): path
        for path, kind_span in plan.spans.items()
        if "." not in path and kind_span.file == span.file
    }
    before = [start for start in starts if start <= (span.line, span.column)]
    return starts[max(before)] if before else ""


__all__ = ["RULES", "Rule", "Subject", "run_checks"]
