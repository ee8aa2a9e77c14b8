"""Mixtures: exact shares, an order that is a function of seed and position, and each sequence in its turn."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.data_sources.kinds import JsonLinesSource
from planc.runtime.data.mixture import JoinedDatasets, MixtureOrder
from planc.runtime.data.open import MixedData, OpenData, mixed, open_data
from planc.runtime.data.order import Epoch, Order, SampleOrder
from planc.runtime.data.shares import BLOCK, Shares, source_block
from planc.runtime.data.spec import DataSpec
from tests.data.mixtures_measured import MIXTURES, by_hand, worst_deviation

WEIGHTS = st.lists(st.decimals("0.0001", "1000", places=4).map(str), min_size=1, max_size=64)


def order_of(sizes: tuple[int, ...], weights: tuple[str, ...], *, seed: int = 5) -> MixtureOrder:
    return MixtureOrder(sizes, Shares.of([Fraction(one) for one in weights]), seed)


@given(weights=WEIGHTS, block=st.integers(0, 10**9))
def test_blocks_have_the_exact_shares_of_all_positions_before(weights: list[str], block: int) -> None:
    exact = [Fraction(weight) for weight in weights]
    shares = Shares.of(exact)
    before, after = shares.totals(block), shares.totals(block + 1)
    assert (sum(before), sum(after)) == (block * BLOCK, (block + 1) * BLOCK)
    assert all(stop >= start for start, stop in zip(before, after, strict=True))
    for total, weight in zip(before, exact, strict=True):
        is_heaviest = weight == max(exact)
        off = abs(total - weight / sum(exact) * block * BLOCK)
        assert off <= (Fraction(len(weights), 2) if is_heaviest else Fraction(1, 2))


@pytest.mark.parametrize("name", MIXTURES)
def test_no_prefix_is_far_from_the_shares(name: str) -> None:
    assert worst_deviation(MIXTURES[name], seed=1, num_positions=50_000) <= 50


def test_three_epochs_of_three_sources_are_the_order_by_hand() -> None:
    sizes, weights = (500, 90, 333), ("0.5", "0.15", "0.35")
    order = order_of(sizes, weights, seed=7)
    count = 3 * sum(sizes)
    expected = list(islice(by_hand(sizes, weights, seed=7), 2 * BLOCK + count))
    offsets = (0, 500, 590)
    for start in (0, 2 * BLOCK - 1_000):
        found = order.sample_ids(start, count=count)
        hand = [offsets[number] + one for number, _, one in expected[start : start + count]]
        assert found.tolist() == hand
    # Each source in its own turn: no sequence twice before all of it has been seen.
    for number, size in enumerate(sizes):
        seen = [one for source, _, one in expected if source == number]
        for first in range(0, len(seen) - size, size):
            assert sorted(seen[first : first + size]) == list(range(size))


def test_any_part_of_the_order_is_the_same_however_it_is_asked_for() -> None:
    order, other = (order_of((50, 3, 700), ("3", "0.1", "2.9")) for _ in range(2))
    whole = order.sample_ids(4_000, count=300)
    parts = [other.sample_ids(start, count=7) for start in (4_280, 4_000, 4_091, 4_098)]
    for start, part in zip((4_280, 4_000, 4_091, 4_098), parts, strict=True):
        np.testing.assert_array_equal(part, whole[start - 4_000 : start - 4_000 + 7])


@pytest.mark.parametrize("order", [order_of((50, 20), ("0.8", "0.2")), SampleOrder(70, 5, (50, 20))])
def test_an_order_counts_what_each_source_has_given(order: Order) -> None:
    ids = order.fresh().sample_ids(0, count=5_000)
    for position in (0, 1, 69, 70, 4_095, 4_096, 5_000):
        before = ids[:position]
        assert order.consumed(position) == ((before < 50).sum(), (before >= 50).sum())


def test_the_counts_of_an_epoch_sorted_bucket_by_bucket_are_those_of_its_ids() -> None:
    sizes = (300, 1, 699)
    epoch, whole = (Epoch(1_000, 3, 0, bucket_size=size) for size in (64, 1 << 20))
    ids = whole.ids(0, count=1_000)
    for offset in (0, 1, 63, 500, 501, 999, 120):
        expected = [np.isin(ids[:offset], range(*one)).sum() for one in ((300,), (300, 301), (301, 1_000))]
        assert epoch.counts(offset, sizes=sizes).tolist() == expected


def test_sources_are_at_random_places_of_a_block() -> None:
    shares = Shares.of([Fraction(1), Fraction(1)])
    blocks = [source_block(shares, seed=seed, block=block) for seed, block in ((0, 0), (0, 1), (1, 0))]
    for one in blocks:
        assert (one.sources == 0).sum() == BLOCK // 2
    differing = [(blocks[0].sources != other.sources).mean() for other in blocks[1:]]
    assert min(differing) > 0.3


def opened(folder: Path, name: str, texts: int) -> OpenData:
    lines = (json.dumps({"text": f"{name} {number} " * 9}) for number in range(texts))
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    spec = DataSpec(JsonLinesSource((f"{name}.jsonl",)), "bytes", 32, 3)
    return open_data(spec, base=folder, model_vocab_size=257)


def test_sources_without_weights_are_one_set_of_sequences(tmp_path: Path) -> None:
    parts = [MixedData(name, "", opened(tmp_path, name, 30)) for name in ("a", "b")]
    data = mixed(parts, seed=3)
    sizes = tuple(one.data.dataset.num_sequences for one in parts)
    assert data.order == SampleOrder(sum(sizes), 3, sizes)
    assert isinstance(data.dataset, JoinedDatasets)
    for index in range(data.dataset.num_sequences):
        source, within = data.dataset.place(index)
        np.testing.assert_array_equal(data.dataset[index], parts[source].data.dataset[within])
    with pytest.raises(IndexError):
        data.dataset[data.dataset.num_sequences]


def test_each_source_has_its_own_marks_unless_they_are_those_of_all(tmp_path: Path) -> None:
    data = opened(tmp_path, "a", 9)
    for marks, expected in (("ends", "ends"), ("stops", "a: ends; b: stops")):
        sources = [
            MixedData("a", "", replace(data, marks="ends")),
            MixedData("b", "", replace(data, marks=marks)),
        ]
        assert mixed(sources, seed=0).marks == expected


def test_a_fingerprint_changes_with_weights_and_sources_not_with_labels(
    tmp_path: Path,
) -> None:
    a, b = (opened(tmp_path, name, 30) for name in ("a", "b"))

    def fingerprint(*parts: tuple[str, str, OpenData]) -> str:
        return mixed([MixedData(*part) for part in parts], seed=3).fingerprint

    first = fingerprint(("a", "7/10", a), ("b", "3/10", b))
    assert fingerprint(("web", "7/10", a), ("code", "3/10", b)) == first
    others = (
        fingerprint(("a", "3/10", a), ("b", "7/10", b)),
        fingerprint(("b", "3/10", b), ("a", "7/10", a)),
        fingerprint(("a", "", a), ("b", "", b)),
    )
    assert len({first, *others}) == 4
