"""Activation checkpointing of module lists, which never run."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind

CODE = Code("P801", "checkpointing-on-list", "activation checkpointing needs a module with a forward")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each module list in a rule."""
    for fqn, span in subject.bound.checkpointed.items():
        module = subject.inventory.get(fqn)
        if module is not None and module.kind is Kind.MODULE_LIST:
            text = f"`{fqn}` is a module list, which has no forward"
            yield CODE.at(span, text, help=f'name its members: `"{fqn}.*"`')


RULE = Rule((CODE,), check)
