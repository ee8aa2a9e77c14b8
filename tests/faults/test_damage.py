"""Damaged checkpoints are refused before a tensor of the model has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.damage import exchange_row, flip_row


@pytest.mark.parametrize("num_flips", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_refused(num_flips: int, tmp_path: Path) -> None:
    row = flip_row(tmp_path, num_flips=num_flips)
    assert len(row.injections) == num_flips
    assert list(row.problems()) == []


def test_cut_lost_doubled_and_exchanged_files_are_refused(tmp_path: Path) -> None:
    assert list(exchange_row(tmp_path).problems()) == []
