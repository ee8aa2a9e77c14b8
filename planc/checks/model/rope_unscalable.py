"""A scaling of rotary embeddings that the model can't take."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code

CODE = Code("P744", "rope-unscalable", "the model's positions can't be scaled")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `model.rope`."""
    rope, inventory = subject.inventory.rope, subject.inventory
    if subject.plan.model.rope is None:
        return
    if rope is None:
        text = f"{inventory.architecture} has no rotary embeddings"
    elif inventory.max_positions is None:
        text = "config.json has no max_position_embeddings to scale"
    elif rope.by_layer:
        text = f"{inventory.architecture} has rotary embeddings of its own for each kind of layer"
    else:
        return
    yield CODE.at(
        subject.plan.span("model.rope"), text, help="remove `rope`, or change rope_parameters in config.json"
    )
