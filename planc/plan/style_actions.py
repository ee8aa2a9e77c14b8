"""Actions of rules: those with one setting or none, and tensor-parallel styles with their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.plan.keys import key, keyed
from planc.plan.scalars import Int
from planc.plan.types import List, Optional, Placement
from planc.record import record
from planc.styles import STYLES, Boundary
from planc.styles.style import Style
from planc.vocab import Placement as PlacementValue


@keyed
class BufferShard:
    tensor_dim: int = key(Int(0, 7), doc="the tensor dimension to shard", positional=True)


@record
class Frozen:
    """Keep the parameters as they are: no gradient, no optimizer state, no reduction."""


@record
class Trained:
    """Train the parameters."""


@record
class Region:
    """Compile the module as one."""


@record
class NoRegion:
    """Run the module without compiling it."""


@record
class StyleAction:
    """A style as a plan writes it, with the boundary placements that it overrides."""

    style: Style
    boundary: Boundary


def _style_record(style: Style) -> type[Any]:
    """The record type of one style's call: only the options that the style takes."""
    options: dict[str, Any] = {
        "input": key(Optional(Placement()), unsaid=None, doc="placement of the input"),
        "output": key(Optional(Placement()), unsaid=None, doc="placement of the output"),
        "desired": key(Optional(Placement()), unsaid=None, doc="placement that the module needs"),
        "sequence_dim": key(Int(0, 7), unsaid=1, doc="the activation dimension to shard"),
        "parts": key(
            Optional(Int(2, 64)), unsaid=None, doc="projections of one width in the layer: 2 unless written"
        ),
        "widths": key(
            Optional(List(Int(1))),
            unsaid=None,
            doc="widths of the projections, where they differ",
        ),
    }
    annotations: dict[str, Any] = {
        "input": PlacementValue | None,
        "output": PlacementValue | None,
        "desired": PlacementValue | None,
        "sequence_dim": int,
        "parts": int | None,
        "widths": tuple[int, ...] | None,
    }
    namespace = {"__annotations__": {name: annotations[name] for name in style.options}, "style": style}
    namespace.update({name: options[name] for name in style.options})
    return record(type(style.name, (), namespace))


STYLE_ACTIONS: Mapping[str, type[Any]] = {style.name: _style_record(style) for style in STYLES}
