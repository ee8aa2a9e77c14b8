"""The ranks of published configurations: what counts, what they are ranked among, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.tune.choice import Choice, Recompute, Rules
from tests.tune.published import choices, chosen, is_surely_faster, rank_of, rows, search_of, states

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "estimates.md"
NANOTRON, MEGATRON = rows()[6], rows()[32]


def test_three_configurations_of_each_publication_count() -> None:
    found = [(row["software"], row["table_order"]) for row in chosen()]
    assert found == [
        *(("torchtitan", number) for number in "123"),
        *(("Llama 3", number) for number in "123"),
        *(("nanotron", number) for number in ("1", "13", "26")),
        *(("Megatron", number) for number in ("1", "5", "10")),
    ]


def test_sizes_multiply_to_the_devices() -> None:
    for row in rows():
        sizes = [int(row[name]) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp")]
        product = 1
        for size in sizes:
            product *= size
        assert product == int(row["num_devices"])


def _all(row: dict[str, str]) -> list[Choice]:
    return list(choices(row, search_of(row)))


def test_nanotron_is_ranked_among_what_its_sweep_could_set() -> None:
    found = _all(dict(NANOTRON))
    assert sum(states(NANOTRON, one) for one in found) == 1
    assert {one.recompute for one in found} == {Recompute.NONE}
    assert {one.stages_per_rank for one in found} == {1} and not any(one.reshard for one in found)
    assert all(one.mesh.cp == 1 and 1 in (one.mesh.dp_replicate, one.mesh.dp_shard) for one in found)


def test_megatron_is_ranked_among_whole_replicas_and_equal_stages() -> None:
    found = _all(dict(MEGATRON))
    assert sum(states(MEGATRON, one) for one in found) == 1
    assert {one.mesh.dp_shard for one in found} == {1}
    assert {one.mesh.rules for one in found} == {Rules.NONE, Rules.AUTO}
    assert all(24 % (one.mesh.pp * one.stages_per_rank) == 0 for one in found)


def test_a_plan_is_surely_faster_only_if_no_coefficient_explains_it() -> None:
    own = (10.0, 12.0, 8.0)
    assert not is_surely_faster(own, own)
    assert is_surely_faster((9.0, 10.8, 7.2), own)
    # As slow as the published one where the coefficient is at its low end.
    assert not is_surely_faster((9.0, 12.0, 6.0), own)


@pytest.mark.slow
def test_a_rank_is_as_the_page_has_it() -> None:
    assert rank_of(NANOTRON).text in PAGE.read_text(encoding="utf-8")
