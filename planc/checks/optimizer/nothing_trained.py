"""Plans that freeze every parameter."""

from __future__ import annotations

from planc.checks.adapters.not_adaptable import CODE as NOT_ADAPTABLE
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.schema import Inventory

CODE = Code("P760", "nothing-trained", "every parameter is frozen")


@reports(CODE, unless=(NOT_ADAPTABLE,))
def check(subject: Subject) -> Findings:
    """One finding at the rule that freezes the first parameter, with the other rules that freeze some."""
    frozen = subject.bound.frozen
    if any(fqn not in frozen for fqn, _, _ in subject.inventory.parameters()):
        return
    first, *others = dict.fromkeys(frozen.values())
    yield CODE.at(
        first,
        "freezes some of the parameters" if others else "freezes every parameter",
        secondary=tuple(Label(span, "and this freezes others") for span in others),
        help=f'add a rule for what to train, as `override "{_example(subject.inventory)}" -> trained`',
    )


def _example(inventory: Inventory) -> str:
    """The head, or the last layer if the head's weight is another module's."""
    owners = {module.fqn for _, module, _ in inventory.parameters()}
    if inventory.head is not None and inventory.head.fqn in owners:
        return inventory.head.fqn
    layers = inventory.layers()
    return layers[-1] if layers else [*owners][-1]
