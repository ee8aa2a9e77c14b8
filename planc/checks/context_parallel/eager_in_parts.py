"""The model's own attention on a part of a sequence."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import divides_sequence
from planc.diagnostics import Code, Label
from planc.layouts.families import layer_of
from planc.plan.spec import AttentionKernel

CODE = Code("P609", "eager-in-parts", "the model's own attention needs whole sequences")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `model.attention` for each block that would give it part of a sequence."""
    plan, bound = subject.plan, subject.bound
    if plan.model.attention is not AttentionKernel.EAGER:
        return
    # The model's code makes masks outside of its layers, for the tokens that it has there.
    outside = (one for fqn, one in bound.styles.items() if not layer_of(bound.inventory, fqn))
    dividing = next((one.span for one in outside if divides_sequence(one.use)), None)
    if plan.context_parallel is not None and plan.mesh.cp > 1:
        text, span = f"cp = {plan.mesh.cp} gives each rank a part of the tokens", plan.context_parallel.span
        help = "set cp = 1 and remove this block"
    elif dividing is not None and plan.mesh.tp > 1:
        text, span = "sequence parallelism passes it masks for part of the tokens", dividing
        help = "shard the sequence within the layers only, as `auto(sequence_parallel = true)` does"
    elif plan.data.packing.isolates:
        text, span = "it can't tell where documents begin", plan.span("data.packing")
        help = "write `packing = attend` or `packing = none`"
    else:
        return
    yield CODE.at(
        plan.span("model.attention"),
        text,
        secondary=(Label(span, "requested here"),),
        help=f"{help}, or write `attention = sdpa` where the model allows it",
    )
