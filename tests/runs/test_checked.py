"""Features together: no two of them end a check in an exception."""

from __future__ import annotations

import pytest

from tests.soundness.features import Features, at_random, outcome, pairs

BROKEN = (
    Features("tied", trained="adapters", mesh="pp 2"),
    Features("tied", trained="above the embeddings", mesh="pp 2"),
    Features(how="compiled", loss="smooth"),
    Features(mesh="replicas", dtypes="no units"),
)
"""Pairs that once did."""


@pytest.mark.parametrize("features", BROKEN, ids=str)
def test_a_pair_that_was_broken_is_accepted(features: Features) -> None:
    assert outcome(features) == "accepted"


@pytest.mark.parametrize("features", [*pairs()][::80], ids=str)
def test_two_features_are_accepted_or_refused(features: Features) -> None:
    assert outcome(features)


@pytest.mark.slow
def test_every_two_features_and_values_of_all_axes_are_accepted_or_refused() -> None:
    found = [outcome(one) for one in (*pairs(), *at_random(300, seed=2))]
    assert found.count("accepted") > len(found) / 3
