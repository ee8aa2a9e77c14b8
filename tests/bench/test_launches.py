"""Launches: what an op moves, and planc beside a loop by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bench.launches import CASES, Launches, by_hand, of_planc


def test_a_kernel_reads_its_tensors_and_writes_its_result_and_a_view_is_none() -> None:
    values, more = torch.ones(10, 10), torch.ones(10, 10)
    with Launches() as launches:
        values.t().reshape(5, 20)
        values.add_(more)
        (values @ more).copy_(more)
    assert launches.counts.kernels == {"clone": 1, "add_": 1, "mm": 1, "copy_": 1}
    assert launches.counts.num_bytes == {"clone": 800, "add_": 1200, "mm": 1200, "copy_": 800}


def test_lists_launch_by_their_blocks() -> None:
    with Launches() as launches:
        torch._foreach_mul_([torch.ones(65536 * 330), torch.ones(1)], 2.0)
    assert launches.counts.kernels == {"ones": 2, "_foreach_mul_": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compiled", "tp 2"])
def test_a_step_launches_and_moves_no_more_than_by_hand(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == name)
    hand, own = by_hand(case), of_planc(case, tmp_path)
    assert own.kernels.total() <= hand.kernels.total()
    assert own.num_bytes.total() <= hand.num_bytes.total()
