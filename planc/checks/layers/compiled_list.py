"""torch.compile of module lists, which never run."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Kind

CODE = Code("P807", "compiled-list", "torch.compile needs a module with a forward")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each module list in a rule."""
    for fqn, span in subject.bound.compiled.items():
        module = subject.inventory.get(fqn)
        if module is not None and module.kind is Kind.MODULE_LIST:
            text = f"`{fqn}` is a module list, which has no forward"
            yield CODE.at(span, text, help=f'name its members: `"{fqn}.*"`')
