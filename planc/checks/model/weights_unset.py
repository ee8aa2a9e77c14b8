"""Weights that the model leaves uninitialized."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Inventory
from planc.plan.spec import Weights

CODE = Code("P720", "weights-unset", "uninitialized parameters or buffers")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the model for its uninitialized tensors; pretrained weights set all but buffers."""
    parameters, buffers = _unset(subject.inventory)
    is_random = subject.plan.model.weights is Weights.RANDOM
    names = (*parameters, *buffers) if is_random else buffers
    if not names:
        return
    found = subject.named(names)
    is_own = subject.plan.model.architecture is not None
    if is_own:
        label = (
            f"{found} starts from what `__init__` writes; planc calls `reset_parameters` and `_init_weights`"
        )
        note = "`__init__` of the whole class would draw other values on each mesh, so a run refuses to start"
        use = (
            "set it in `reset_parameters` of its module or of one around it, or in `_init_weights(module)` "
            "of the class"
        )
    else:
        label = f"the model's code never initializes {found}"
        note = "training would start from arbitrary memory, so a run refuses to start"
        use = "use a model whose code initializes every weight"
    yield CODE.at(
        subject.plan.span("model.hf"),
        label,
        notes=(note,),
        help=use + (", or write `weights = pretrained`" if not buffers else ""),
    )


def _unset(inventory: Inventory) -> tuple[list[str], list[str]]:
    """The fqns of parameters and of buffers that the model does not initialize."""
    parameters: list[str] = []
    buffers: list[str] = []
    for module in inventory.modules:
        own = {parameter.name for parameter in module.parameters}
        for name in module.unset:
            fqn = f"{module.fqn}.{name}" if module.fqn else name
            (parameters if name in own else buffers).append(fqn)
    return parameters, buffers
