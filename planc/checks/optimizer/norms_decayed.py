"""Weight decay that is disabled for some norms but not others."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.inventory.schema import Kind
from planc.layouts.families import quoted

CODE = Code("P721", "norms-decayed", "weight decay is disabled for some norms but not others", Severity.NOTE)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One note at the first group without decay for a norm, with the norms that no group names.

    Groups of biases tell nothing about norms, and a decay that is written is intended.
    """
    decay = subject.plan.optimizer.kind.weight_decay
    decays = subject.bound.weight_decay
    norms = {
        fqn: module.fqn
        for fqn, module, parameter in subject.inventory.parameters()
        if module.kind is Kind.NORM and parameter.name != "bias" and fqn not in subject.bound.frozen
    }
    spared = [decays[fqn][1] for fqn in norms if fqn in decays and decays[fqn][0] == 0]
    left = [module_fqn for fqn, module_fqn in norms.items() if fqn not in decays]
    if not spared or not left or decay == 0:
        return
    patterns = subject.patterns(left)
    listed = ", ".join(f'"{pattern}"' for pattern in patterns)
    yield CODE.at(
        spared[0],
        f"{quoted(patterns)} {'decay' if len(left) > 1 else 'decays'} by {decay:g}",
        help=f"add `{listed if len(patterns) == 1 else f'[{listed}]'} -> group(weight_decay = 0.0)`, "
        f"or `weight_decay = {decay:g}` if that is intended",
    )
