"""Layers that carry a state along the sequence, which context parallelism shards."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Inventory
from planc.layouts.families import runs
from planc.vocab import MeshDim

CODE = Code("P605", "recurrent-under-cp", "context parallelism does not support recurrent layers")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding at the block when members of a repeated block mix tokens otherwise than by attention."""
    spec = subject.plan.context_parallel
    if spec is None:
        return
    for text in without_attention(subject.inventory):
        yield CODE.at(
            spec.span,
            text,
            notes=("each rank would reset the state in the middle of a sequence",),
            help="set cp = 1 and remove this block",
        )


def without_attention(inventory: Inventory) -> Iterator[str]:
    """The members of each repeated block that mix tokens otherwise than by attention, in words."""
    for block in inventory.blocks:
        depth = block.count(".") + 2
        attending = {".".join(attention.fqn.split(".")[:depth]) for attention in inventory.attentions}
        bare = [name for name in inventory.members(block) if name not in attending]
        if bare and all(name.rpartition(".")[2].isdecimal() for name in bare):
            numbers = runs([int(name.rpartition(".")[2]) for name in bare])
            yield (
                f"`{block}.{{{numbers}}}` has no attention"
                if len(bare) > 1
                else f"`{bare[0]}` has no attention"
            )
        beside = next((name for name in _convolutions(inventory) if name.startswith(f"{block}.")), None)
        if beside is not None and not bare:
            yield f"`{beside}` mixes neighboring tokens"


def _convolutions(inventory: Inventory) -> Iterator[str]:
    """Convolutions, which over tokens carry the last few along; GPT-2's `Conv1D` is a linear layer."""
    return (module.fqn for module in inventory.modules if module.class_name == "Conv1d")
