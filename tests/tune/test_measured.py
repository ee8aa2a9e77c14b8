"""The measurement of tuned plans: what it compares is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.inventory.load import save_inventory
from tests.tune.cpu_device import Peaks
from tests.tune.measured import MODELS, NUM_RANKS, Result, legal, tuned

PEAKS = Peaks(
    {"matmul": 2e10, "attention": 1e10, "memory": 8e9, "link": 1e9, "collective": 2e-4, "operation": 1e-5}
)


@pytest.mark.slow
def test_every_mesh_is_run_and_the_search_finds_a_plan_on_the_measured_device(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(MODELS["llama"]), encoding="utf-8")
    save_inventory(tmp_path / "llama")
    graphs = legal("llama", tmp_path)
    assert {graph.world_size for graph in graphs.values()} == {NUM_RANKS}
    # 4 = 4 x 1 on one of five dims, or 2 x 2 on two of them.
    assert len({graph.mesh for graph in graphs.values()}) == 5 + 10
    first = tuned("llama", tmp_path, PEAKS)
    assert first.checked.graph is not None
    assert first.checked.graph.world_size == NUM_RANKS


def test_a_slower_plan_has_a_ratio_above_one() -> None:
    result = Result("llama", "first", 1.2, 1.0, {"one": 1.0, "other": 2.0})
    assert (result.fastest, result.ratio) == ("one", 1.2)
    assert Result("llama", "first", 0.9, 1.0, {"one": 1.0}).ratio == 1.0
