"""The sequence's layout over tp between stages of a pipeline, and between layers and what is around them."""

from __future__ import annotations

from planc.layouts.entry import handed_on
from planc.layouts.flow import layout_flow
from planc.plan.bind import BoundPlan
from planc.plan.spec import PipelineSpec
from planc.plan.stages import layers, sending_layers, stages
from planc.record import record
from planc.styles.edges import SEQUENCE


@record
class SequenceLayouts:
    """`on_shards` is the field of `pipeline.split`."""

    sent_length: int
    """Positions of a sequence that a rank holds between two stages."""
    on_shards: tuple[str, ...] = ()


def sequence_layouts(bound: BoundPlan, pipeline: PipelineSpec) -> SequenceLayouts:
    """The layouts of a plan whose stages all send one, which a rule demands."""
    mesh = bound.plan.mesh
    length = bound.plan.data.sequence_length // mesh.cp
    if mesh.tp == 1:
        return SequenceLayouts(length)
    flow, members, found = layout_flow(bound), layers(bound.inventory), stages(bound, pipeline)

    def is_sharded(name: str) -> bool:
        return handed_on(bound, flow, name) == SEQUENCE

    outer = (name for name in (*found[0], *found[-1]) if name not in members)
    on_shards = tuple(filter(is_sharded, outer))
    if is_sharded(members[-1]):
        on_shards = (*on_shards, bound.inventory.blocks[0])
    sends_shards = any(map(is_sharded, sending_layers(bound, pipeline)))
    return SequenceLayouts(length // mesh.tp if sends_shards else length, on_shards)
