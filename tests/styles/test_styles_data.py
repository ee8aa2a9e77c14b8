"""The styles as data: complete, consistent, documented."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields

import pytest

import planc.styles
from planc.inventory.schema import Kind
from planc.styles import BY_NAME, STYLES, Boundary, Style
from planc.styles.style import own_placement, use
from planc.vocab import Partial, Placement, Replicate, Shard, StridedShard, local_shape

OPTIONS = tuple(field.name for field in fields(Boundary))
each_style = pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(STYLES)
    assert all(BY_NAME[style.name] is style for style in STYLES)


def test_every_style_in_the_package_is_registered() -> None:
    found = []
    for info in pkgutil.iter_modules(planc.styles.__path__):
        module = importlib.import_module(f"planc.styles.{info.name}")
        found += [value for value in vars(module).values() if isinstance(value, Style)]
    assert {style.name for style in found} == set(BY_NAME)


@each_style
def test_a_style_is_documented_in_a_sentence(style: Style) -> None:
    assert style.doc[0].isupper()
    assert style.doc.endswith(".")


@each_style
def test_a_style_is_for_some_kind_of_module(style: Style) -> None:
    assert style.kinds
    assert len(set(style.kinds)) == len(style.kinds)


@each_style
def test_options_are_ones_that_a_plan_can_write(style: Style) -> None:
    assert set(style.options) <= set(OPTIONS)
    assert len(set(style.options)) == len(style.options)


@each_style
def test_no_style_leaves_a_partial_result_at_its_edges(style: Style) -> None:
    """A sum that somebody else must finish is the fault that no forward pass shows."""
    for placement in (style.input, style.output, style.computes_on, *style.parameters.values()):
        assert not isinstance(placement, Partial)


@each_style
def test_only_modules_that_own_parameters_have_them_placed(style: Style) -> None:
    if set(style.kinds) & {Kind.CONTAINER, Kind.NORM}:
        assert style.parameters == {}


@each_style
def test_whole_parameters_under_divided_work_have_their_gradients_summed(style: Style) -> None:
    works_divided = style.shares_heads or (isinstance(style.computes_on, Shard) and not style.parameters)
    assert style.reduces_parameter_gradients == works_divided


@each_style
def test_a_style_without_options_given_is_used_as_it_says(style: Style) -> None:
    found = use(style, Boundary())
    assert (found.style, found.input, found.computes_on, found.output) == (
        style.name,
        style.input,
        style.computes_on,
        style.output,
    )


@pytest.mark.parametrize("option", ["input", "output"])
@pytest.mark.parametrize("placement", [Shard(1), Shard(-1), Replicate()], ids=str)
def test_a_boundary_that_is_written_holds(option: str, placement: Shard | Replicate) -> None:
    boundary = Boundary(input=placement) if option == "input" else Boundary(output=placement)
    for style in (style for style in STYLES if option in style.options):
        found = use(style, boundary)
        assert getattr(found, option) == placement
        assert found.computes_on == style.computes_on


def test_prepare_input_leaves_what_it_prepared() -> None:
    found = use(BY_NAME["prepare_input"], Boundary(input=Shard(1), desired=Replicate()))
    assert (found.input, found.computes_on, found.output) == (Shard(1), Replicate(), Replicate())


@pytest.mark.parametrize("sequence_dim", [0, 1, 2])
def test_sequence_parallel_works_along_its_dimension(sequence_dim: int) -> None:
    found = use(BY_NAME["sequence_parallel"], Boundary(sequence_dim=sequence_dim))
    along = Shard(sequence_dim)
    assert (found.input, found.computes_on, found.output) == (along, along, along)
    assert found.sequence_dim == sequence_dim


EXPERTS, VECTOR = (8, 64, 32), (16,)


@pytest.mark.parametrize(
    ("style", "shape", "expected"),
    [
        ("colwise", EXPERTS, Shard(1)),
        ("rowwise", EXPERTS, Shard(2)),
        ("packed_colwise", EXPERTS, StridedShard(1, 2)),
        ("packed_rowwise", EXPERTS, StridedShard(2, 2)),
        ("replicate", EXPERTS, Replicate()),
        ("colwise", VECTOR, Shard(0)),
        ("rowwise", VECTOR, None),
        ("sequence_parallel", EXPERTS, None),
    ],
)
def test_a_parameter_of_its_own_name_is_divided_behind_the_experts(
    style: str, shape: tuple[int, ...], expected: Placement | None
) -> None:
    assert own_placement(style, shape) == expected


def test_a_rank_holds_its_part_of_each_packed_tensor() -> None:
    shapes = [local_shape((3, 10, 4), StridedShard(1, 2), parts=2, index=index) for index in range(2)]
    assert shapes == [(3, 6, 4), (3, 4, 4)]
