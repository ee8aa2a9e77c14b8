"""The types of a style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from planc.inventory.schema import Kind
from planc.record import record
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge, distribution, normal
from planc.vocab import PackedShard, Partial, Placement, Replicate, Shard, StridedShard


@record
class Style:
    """A style: the placements of one module over the tensor-parallel mesh dim.

    `parameters` places each parameter by its local name; one that is not listed is replicated. For a
    Conv1D, which stores its weight as [in, out], `placements` has the other dimension. `computes_on` is the
    placement of the input that the module's own arithmetic needs, and `yields` the one it gives, the
    input's unless it says another: an input in another placement (`input`) is redistributed, and so is the
    output to `output`.
    """

    name: str
    usual: str
    """A pattern of modules that it is for, as transformers names them."""
    doc: str
    kinds: tuple[Kind, ...]
    parameters: Mapping[str, Placement]
    computes_on: Placement
    input: Placement
    output: Placement
    yields: Placement | None = None
    reads_by_parts: bool = False
    """Whether ranks compute different things with a whole input, whose gradient is then a partial sum."""
    more_edges: tuple[Edge, ...] = ()
    """The edges of other values than the module's input and output."""
    options: tuple[str, ...] = ()
    reduces_parameter_gradients: bool = False
    """Whether gradients of replicated parameters are summed over the mesh dim."""
    shares_heads: bool = False
    """Whether ranks compute with rows of replicated parameters, some of them the same as their neighbors."""
    placed_by_model: bool = False
    """Whether the model's own plan places parameters by their names, and replicates none of them."""
    meets_heads: bool = False
    """Whether sharded heads use the whole output, and its gradient from them is reduced."""
    prepares: bool = False
    """Whether it only redistributes its module's input and output."""
    together: str = ""
    """The rules of a whole model that it only works with, and where a plan can take them from."""

    def placements(self, kind: Kind, boundary: Boundary) -> Mapping[str, Placement]:
        """The placement of each parameter of a module of this kind, with a plan's options."""
        is_transposed = kind is Kind.CONV1D
        if not is_transposed and boundary.parts is None and boundary.widths is None:
            return self.parameters
        return {
            name: _placed(placement, boundary, is_transposed=is_transposed and name == "weight")
            for name, placement in self.parameters.items()
        }

    @property
    def example(self) -> str:
        """A rule with the style, as a plan writes it."""
        return f'"{self.usual}" -> {self.name}'


def _placed(placement: Placement, boundary: Boundary, *, is_transposed: bool) -> Placement:
    """A parameter's placement with a plan's options; with `is_transposed`, of one stored as [in, out]."""
    match placement:
        case Shard(tensor_dim):
            return Shard(1 - tensor_dim if is_transposed else tensor_dim)
        case StridedShard(tensor_dim, split_factor):
            tensor_dim = 1 - tensor_dim if is_transposed else tensor_dim
            if boundary.widths is not None:
                return PackedShard(tensor_dim, boundary.widths)
            return StridedShard(tensor_dim, boundary.parts or split_factor)
        case PackedShard() | Replicate() | Partial():
            return placement
        case _:
            assert_never(placement)


@record
class StyleUse:
    """A style with its options resolved, as a graph has it.

    `input` is the placement of the module's input, `computes_on` the one its arithmetic needs, `output` its
    output's. `sequence_dim` is the activation dimension that sequence parallelism shards.
    """

    style: str
    input: Placement
    computes_on: Placement
    output: Placement
    sequence_dim: int = 1


@record
class Boundary:
    """A plan's changes to a style's use: placements of input and output, and what a layer holds. None for the
    style's own."""

    input: Placement | None = None
    output: Placement | None = None
    desired: Placement | None = None
    sequence_dim: int | None = None
    parts: int | None = None
    """Projections of one width that a layer holds in sequence."""
    widths: tuple[int, ...] | None = None
    """The widths of the projections that a layer holds in sequence, where they differ."""


def own_placement(style: str, shape: tuple[int, ...]) -> Placement | None:
    """The placement that transformers' own plan gives a parameter by name; None for other styles.

    Rows and columns are the last two dimensions, after the dimension of experts. A vector has only rows.
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
    """The style with a plan's options resolved."""
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


def edges(style: Style, use: StyleUse, *, is_prepared: bool) -> tuple[Edge, ...]:
    """The edges of a module with a style at which anything happens.

    `is_prepared` is for a module whose input a container around it has prepared for all that read it: the
    container reduces the sum of their gradients, once.
    """
    computes_on = normal(use.computes_on)
    yields = computes_on if style.yields is None else style.yields
    arriving, entering = distribution(normal(use.input)), distribution(computes_on)
    if style.reads_by_parts and entering == WHOLE:
        entering = READ_BY_PARTS
    if is_prepared and arriving == WHOLE != entering:
        arriving = READ_BY_PARTS
    found = (
        Edge(At.INPUT, arriving, entering),
        Edge(At.OUTPUT, distribution(yields), distribution(normal(use.output))),
        *style.more_edges,
    )
    return tuple(edge for edge in found if edge.arriving != edge.leaving)
