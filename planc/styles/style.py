"""The types of a style."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Kind
from planc.record import record
from planc.vocab import Placement, Replicate, Shard, StridedShard


@record
class Style:
    """What a style does to one module over the tensor-parallel mesh dim.

    `parameters` places each parameter by its local name; one that is not listed is replicated. `computes_on`
    is the placement that the module's own arithmetic needs of its input: where the input arrives otherwise
    (`input`), it is redistributed, and so is what it yields to `output`.
    """

    name: str
    doc: str
    kinds: tuple[Kind, ...]
    parameters: Mapping[str, Placement]
    computes_on: Placement
    input: Placement
    output: Placement
    options: tuple[str, ...] = ()
    reduces_parameter_gradients: bool = False
    """Whether gradients of replicated parameters are summed over the mesh dim."""
    placed_by_model: bool = False
    """Whether parameters lie as the model's own plan places them, by their names, and none stays whole."""
    meets_heads: bool = False
    """Whether the whole output is used beside divided heads, and what comes back from them is summed."""
    prepares: bool = False
    """Whether it only redistributes what enters its module, and what leaves it."""


@record
class StyleUse:
    """A style with its options settled, as a graph carries it.

    `input` is how the module's input arrives, `computes_on` what its arithmetic needs, `output` how its
    output leaves. `sequence_dim` is the activation dimension that sequence parallelism divides.
    """

    style: str
    input: Placement
    computes_on: Placement
    output: Placement
    sequence_dim: int = 1


@record
class Boundary:
    """The placements at a module's edge that a plan can write; None takes the style's own."""

    input: Placement | None = None
    output: Placement | None = None
    desired: Placement | None = None
    sequence_dim: int | None = None


def own_placement(style: str, shape: tuple[int, ...]) -> Placement | None:
    """Where transformers' own plan puts a parameter that it names itself; None for no style of a parameter.

    Rows and columns are those of the last two dimensions, behind that of the experts. A vector has only rows.
    """
    rows, columns = max(len(shape) - 2, 0), len(shape) - 1
    match style:
        case "colwise":
            return Shard(rows)
        case "packed_colwise":
            return StridedShard(rows, 2)
        case "rowwise" if columns > 0:
            return Shard(columns)
        case "packed_rowwise" if columns > 0:
            return StridedShard(columns, 2)
        case "replicate":
            return Replicate()
        case _:
            return None


def use(style: Style, boundary: Boundary) -> StyleUse:
    """The style with a plan's options settled."""
    sequence_dim = boundary.sequence_dim if boundary.sequence_dim is not None else 1
    if "sequence_dim" in style.options:
        along = Shard(sequence_dim)
        return StyleUse(style.name, along, along, along, sequence_dim)
    computes_on = boundary.desired or style.computes_on
    is_input_only = "desired" in style.options and "output" not in style.options
    return StyleUse(
        style.name,
        boundary.input or style.input,
        computes_on,
        boundary.output or (computes_on if is_input_only else style.output),
        sequence_dim,
    )
