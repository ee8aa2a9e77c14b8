"""Weight decay that is switched off for some norms and not for others."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.inventory.schema import Kind
from planc.layouts.families import as_patterns, families, quoted

CODE = Code("P721", "norms-decayed", "some norms are left out of what does not decay", Severity.NOTE)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One note at the first group that spares a norm, naming those that no group mentions.

    Biases say nothing of norms, and a decay that is written is meant.
    """
    decay = subject.plan.optimizer.kind.weight_decay
    decays = subject.bound.weight_decay
    norms = {
        fqn: module.fqn
        for fqn, module, parameter in subject.inventory.parameters()
        if module.kind is Kind.NORM and parameter.name != "bias"
    }
    spared = [decays[fqn][1] for fqn in norms if fqn in decays and decays[fqn][0] == 0]
    left = [module_fqn for fqn, module_fqn in norms.items() if fqn not in decays]
    if not spared or not left or decay == 0:
        return
    patterns = as_patterns(families(subject.inventory, left))
    listed = ", ".join(f'"{pattern}"' for pattern in patterns)
    yield CODE.at(
        spared[0],
        f"{quoted(patterns)} {'decay' if len(left) > 1 else 'decays'} by {decay:g}",
        help=f"add them: `{listed if len(patterns) == 1 else f'[{listed}]'} -> group(weight_decay = 0.0)`; "
        f"or write {decay:g} for them, if it is meant",
    )


RULE = Rule((CODE,), check)
