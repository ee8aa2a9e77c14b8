"""The edges of modules over tp: each transfer of the table, computed by hand on simulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from planc.styles import STYLES
from planc.styles.edges import (
    FEATURES,
    READ_BY_PARTS,
    SEQUENCE,
    WHOLE,
    At,
    Distribution,
    Edge,
    Transfer,
    distribution,
    transfer,
)
from planc.styles.style import Boundary, edges, use
from planc.vocab import Partial, Placement, Replicate, Shard

RANKS = 2
PLACEMENTS: tuple[Placement, ...] = (Replicate(), Partial(), SEQUENCE, FEATURES)
Ranks = list[np.ndarray]


def held(value: np.ndarray, placement: Placement) -> Ranks:
    """A value [batch, sequence, features] as ranks hold it."""
    match placement:
        case Replicate():
            return [value.copy() for _ in range(RANKS)]
        case Partial():
            return [value / 4, value * 3 / 4]
        case Shard(tensor_dim):
            return np.split(value, RANKS, axis=tensor_dim)
    raise AssertionError(placement)


def moved(ranks: Ranks, arriving: Placement, leaving: Placement) -> Ranks:
    """What the transfer from one placement to another gives each rank, by its name alone."""
    along = [one.tensor_dim for one in (arriving, leaving) if isinstance(one, Shard)]
    match transfer(arriving, leaving):
        case Transfer.KEEP:
            return ranks
        case Transfer.SPLIT:
            return [np.split(own, RANKS, axis=along[0])[rank] for rank, own in enumerate(ranks)]
        case Transfer.PAD:
            zeros = [np.zeros_like(own) for own in ranks]
            parts = [
                [own if rank == at else zeros[at] for at in range(RANKS)] for rank, own in enumerate(ranks)
            ]
            return [np.concatenate(part, axis=along[0]) for part in parts]
        case Transfer.ALL_GATHER:
            return [np.concatenate(ranks, axis=along[0])] * RANKS
        case Transfer.ALL_REDUCE:
            return [sum(ranks, np.zeros_like(ranks[0]))] * RANKS
        case Transfer.REDUCE_SCATTER:
            return np.split(sum(ranks, np.zeros_like(ranks[0])), RANKS, axis=along[0])
        case Transfer.ALL_TO_ALL:
            whole = np.concatenate(ranks, axis=along[0])
            return np.split(whole, RANKS, axis=along[1])


def value_of(ranks: Ranks, placement: Placement) -> np.ndarray:
    match placement:
        case Replicate():
            assert all((own == ranks[0]).all() for own in ranks)
            return ranks[0]
        case Partial():
            return sum(ranks, np.zeros_like(ranks[0]))
        case Shard(tensor_dim):
            return np.concatenate(ranks, axis=tensor_dim)
    raise AssertionError(placement)


def pairs() -> Iterator[tuple[Placement, Placement]]:
    """Whatever an edge may do: a whole value never becomes summands."""
    for arriving, leaving in product(PLACEMENTS, PLACEMENTS):
        if (arriving, leaving) != (Replicate(), Partial()):
            yield arriving, leaving


@pytest.mark.parametrize(("arriving", "leaving"), list(pairs()), ids=str)
def test_a_transfer_keeps_the_value(arriving: Placement, leaving: Placement) -> None:
    value = np.arange(2 * 4 * 6, dtype=np.float64).reshape(2, 4, 6)
    after = moved(held(value, arriving), arriving, leaving)
    assert (value_of(after, leaving) == value).all()


def test_a_whole_value_never_becomes_summands() -> None:
    with pytest.raises(AssertionError, match="no edge goes from"):
        transfer(Replicate(), Partial())


@pytest.mark.parametrize(
    ("arriving", "leaving", "forward", "backward"),
    [
        (WHOLE, READ_BY_PARTS, Transfer.KEEP, Transfer.ALL_REDUCE),
        (distribution(SEQUENCE), READ_BY_PARTS, Transfer.ALL_GATHER, Transfer.REDUCE_SCATTER),
        (distribution(SEQUENCE), WHOLE, Transfer.ALL_GATHER, Transfer.SPLIT),
        (WHOLE, distribution(FEATURES), Transfer.SPLIT, Transfer.ALL_GATHER),
        (READ_BY_PARTS, distribution(FEATURES), Transfer.SPLIT, Transfer.PAD),
        (distribution(Partial()), WHOLE, Transfer.ALL_REDUCE, Transfer.KEEP),
        (distribution(Partial()), distribution(SEQUENCE), Transfer.REDUCE_SCATTER, Transfer.ALL_GATHER),
        (distribution(SEQUENCE), distribution(FEATURES), Transfer.ALL_TO_ALL, Transfer.ALL_TO_ALL),
    ],
)
def test_backward_is_the_transpose_of_forward(
    arriving: Distribution, leaving: Distribution, forward: Transfer, backward: Transfer
) -> None:
    edge = Edge(At.OUTPUT, arriving, leaving)
    assert (edge.forward, edge.backward) == (forward, backward)


def every_use() -> Iterator[Edge]:
    options = (None, Replicate(), SEQUENCE, FEATURES)
    for style, given, wanted, left, is_prepared in product(STYLES, options, options, options, (True, False)):
        boundary = Boundary(
            input=given if "input" in style.options else None,
            desired=wanted if "desired" in style.options else None,
            output=left if "output" in style.options else None,
        )
        yield from edges(style, use(style, boundary), is_prepared=is_prepared)


def test_every_edge_of_every_style_with_every_option_has_its_transfers() -> None:
    found = set(every_use())
    assert len(found) > 10
    assert all(edge.forward is not Transfer.KEEP or edge.backward is not Transfer.KEEP for edge in found)


def test_a_container_that_prepares_an_input_reduces_its_gradient_for_all_that_read_it() -> None:
    by_name = {style.name: style for style in STYLES}
    container, column = by_name["prepare_input"], by_name["colwise"]
    (entrance,) = edges(container, use(container, Boundary(input=SEQUENCE)), is_prepared=False)
    assert (entrance.forward, entrance.backward) == (Transfer.ALL_GATHER, Transfer.REDUCE_SCATTER)
    assert edges(column, use(column, Boundary()), is_prepared=True) == ()
    (alone,) = edges(column, use(column, Boundary()), is_prepared=False)
    assert (alone.forward, alone.backward) == (Transfer.KEEP, Transfer.ALL_REDUCE)
