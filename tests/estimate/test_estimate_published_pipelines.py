"""Peaks of pipelines that others published; planc's features were in no run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planc.graph.pipeline import pipeline_of
from planc.graph.verify import verify
from tests.estimate.published import Row
from tests.estimate.published_pipelines import Score, lowered, mean_error, rows, scored

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "estimates.md"


@cache
def comparable() -> tuple[Score, ...]:
    return tuple(scored(row) for row in rows() if row["trainer"] == "torchtitan")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['trainer']}-{row['model']}-pp{row['pp']}")
def test_every_published_pipeline_is_a_sound_graph(row: Row) -> None:
    graph, _ = lowered(row)
    pipeline = pipeline_of(graph)
    assert verify(graph) == ()
    assert pipeline is not None
    assert pipeline.num_stages == int(row["pp"]) * int(row["stages_per_rank"])
    assert pipeline.num_micro_batches == int(row["micro_batches"])


NEAR = (1, 4)
"""Interleaved, and 131_072 tokens."""


def test_comparable_peaks_are_near_and_documented() -> None:
    """All are low: in part torch's messages, which planc does not hold, so no formula has them.

    Four are further off than the goal of 5 %, by causes that are not known: the page lists them.
    """
    errors = [score.error for score in comparable() if score.error is not None]
    assert len(errors) == 6
    assert all(-0.10 < errors[number] < 0.0 for number in NEAR)
    assert all(-0.18 < error < 0.0 for error in errors)
    text = f"comparable, 6 rows: mean error {100 * mean_error(comparable()):.1f} %"
    assert text in PAGE.read_text(encoding="utf-8")


def test_messages_that_torch_holds_explain_a_part() -> None:
    """On pp rank 1 of 8, 1F1B: 7 outputs and 8 gradients of 4_096 x 16_384 in bfloat16, one input early."""
    a_message = 4096 * 16_384 * 2 / 2**30
    kept = comparable()[4]
    assert kept.pp_rank == 1
    assert kept.messages_gib == (7 + 8 + 1 - 1) * a_message
    for one in comparable():
        assert one.error is not None and one.error_with_messages is not None
        assert one.error_with_messages > one.error
    near = (comparable()[number].error_with_messages for number in NEAR)
    assert all(error is not None and abs(error) < 0.07 for error in near)


@pytest.mark.slow
def test_a_peak_does_not_count_what_has_been_received() -> None:
    """530B in 280 micro-batches ran on 80 GB; with all of their messages it would have needed 157 GiB."""
    (row,) = (row for row in rows() if row["model"] == "MT-NLG-530B")
    assert 50 < scored(row).estimated_gib < 74
