"""Rotary embeddings that each forward selects by the positions it sees."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.positions import grows
from planc.plan.spec import LoadBalancer

CODE = Code("P610", "positions-apart", "forwards would use different rotary embeddings")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `data.sequence_length` for LongRoPE or dynamic scaling, where some rank or some batch
    sees short positions alone and others do not."""
    plan, inventory = subject.plan, subject.inventory
    length, is_dynamic = plan.data.sequence_length, grows(plan, inventory)
    switch = inventory.max_positions if is_dynamic else None if plan.model.rope else inventory.rope_switch
    if switch is None or length <= switch:
        return
    text = f"beyond {switch} positions, the model switches rotary embeddings for all tokens of a forward"
    if plan.data.packing.isolates:
        why = Label(
            plan.span("data.packing"), "positions restart at every document, so only long ones would switch"
        )
        help = f"write `packing = attend`, or set `sequence_length` to at most {switch}"
        yield CODE.at(plan.span("data.sequence_length"), text, secondary=(why,), help=help)
    elif not is_dynamic and (seen := _fewest_positions(subject)) <= switch:
        spec = plan.context_parallel
        assert spec is not None, "elsewhere every rank sees all positions"
        why = Label(spec.span, f"with cp = {plan.mesh.cp}, some rank sees only positions up to {seen}")
        help = f"lower `cp`, or set `sequence_length` to at most {switch}"
        yield CODE.at(plan.span("data.sequence_length"), text, secondary=(why,), help=help)


def _fewest_positions(subject: Subject) -> int:
    """One more than the last position of the rank whose last one is the lowest."""
    spec, cp, length = subject.plan.context_parallel, subject.plan.mesh.cp, subject.plan.data.sequence_length
    if spec is None:
        return length
    if spec.load_balancer is LoadBalancer.HEADTAIL:
        # Of 2 cp chunks the last rank has the two in the middle.
        return length * (cp + 1) // (2 * cp)
    return length // cp
