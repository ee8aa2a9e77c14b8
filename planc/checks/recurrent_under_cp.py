"""Layers that carry a state along the sequence, which context parallelism divides."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.families import runs
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P605", "recurrent-under-cp", "context parallelism knows no recurrent layers")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the block when members of a repeated block mix tokens without attention."""
    spec, inventory = subject.plan.context_parallel, subject.inventory
    if spec is None:
        return
    for block in inventory.blocks:
        depth = block.count(".") + 2
        attending = {".".join(attention.fqn.split(".")[:depth]) for attention in inventory.attentions}
        members = [name for name in inventory.names() if name.rpartition(".")[0] == block]
        bare = [name for name in members if name not in attending]
        if bare and all(name.rpartition(".")[2].isdecimal() for name in bare):
            numbers = runs([int(name.rpartition(".")[2]) for name in bare])
            yield CODE.at(
                spec.span,
                f"`{block}.{{{numbers}}}` has no attention" if len(bare) > 1 else f"`{bare[0]}` has none",
                notes=("each rank would start the state anew in the middle of a sequence",),
                help="set cp = 1 and remove this block",
            )


RULE = Rule((CODE,), check, over=MeshDim.CP)
