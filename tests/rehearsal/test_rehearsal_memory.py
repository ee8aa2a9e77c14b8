"""What a rehearsal holds, against PyTorch's own allocator; what is reserved for it, on small sequences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from planc.devices.segment import Segment
from planc.inventory.load import save_inventory
from planc.runtime.rehearsal.findings import Measured
from planc.runtime.rehearsal.lives import Life, Lives, Moment, Visit, repeated
from planc.runtime.rehearsal.measure import SMALL_BYTES, reserved_bytes
from planc.runtime.rehearsal.rehearse import rehearse
from tests.dist.pool import run_ranks
from tests.parity.cases import MODELS, Case, compile_case
from tests.parity.ranks import Task
from tests.rehearsal.allocations import peak_growth

WIDE = "llama-wide"
FSDP, DIVIDED = 0.001, 0.02
PASSES = ("forward", "loss", "backward")


@dataclass(frozen=True, slots=True)
class Held:
    """The peak of forward to backward beyond the states, in bytes."""

    real: int
    rehearsed: int

    @property
    def error(self) -> float:
        return abs(self.rehearsed / self.real - 1)


@pytest.fixture(scope="module")
def wide_workspace(workspace: Path) -> Path:
    """The workspace with a model wide enough that blocks of 512 bytes do not show."""
    folder = workspace / WIDE
    folder.mkdir(exist_ok=True)
    sizes = {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 4096, "head_dim": 32}
    config = {**MODELS["llama"], **sizes, "num_hidden_layers": 4}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_inventory(folder)
    return workspace


def held(case: Case, *, workspace: Path, tmp_path: Path) -> Held:
    """The least of three real runs: gloo's threads keep what they have sent for as long as they are busy."""
    graph = compile_case(case, workspace=workspace)
    tasks = [Task(graph, workspace, tmp_path / f"run{number}") for number in range(3)]
    real = min(run_ranks(peak_growth, graph.world_size, task, init=False)[0] for task in tasks)
    measured = rehearse(graph, base=workspace).measured
    assert measured is not None
    return Held(real, growth(measured))


def growth(measured: Measured) -> int:
    """What the passes hold beyond what was there when the step began."""
    by_name = {one.segment: one.num_bytes for one in measured.segments}
    passing = (size for name, size in by_name.items() if name.startswith(PASSES))
    return max(passing) - by_name["batch.next"]


@pytest.mark.slow
def test_sharded_layers_hold_what_the_allocator_says(wide_workspace: Path, tmp_path: Path) -> None:
    case = Case("DP2", "", {"dp_shard": 2}, model=WIDE, micro_batch=4)
    assert held(case, workspace=wide_workspace, tmp_path=tmp_path).error <= FSDP


@pytest.mark.slow
def test_divided_layers_hold_what_the_allocator_says(wide_workspace: Path, tmp_path: Path) -> None:
    case = Case("TP2", "", {"tp": 2}, model=WIDE)
    assert held(case, workspace=wide_workspace, tmp_path=tmp_path).error <= DIVIDED


def test_a_block_goes_into_the_smallest_gap_that_holds_it() -> None:
    segment = Segment()
    starts = [segment.take(size) for size in (10, 1, 4, 1, 5, 1)]
    for start, size in ((starts[0], 10), (starts[2], 4), (starts[4], 5)):
        segment.give(start, num_bytes=size)
    assert segment.take(5) == starts[4]
    assert segment.take(3) == starts[2]
    assert segment.end == 22


def test_what_fits_nowhere_makes_the_segment_longer() -> None:
    segment = Segment()
    first, _, last = (segment.take(size) for size in (10, 1, 6))
    segment.give(first, num_bytes=10)
    segment.give(last, num_bytes=6)
    assert segment.take(12) == last
    assert segment.end == 23


def test_gaps_side_by_side_are_one() -> None:
    segment = Segment()
    starts = [segment.take(10) for _ in range(4)]
    for start in (starts[0], starts[2], starts[1]):
        segment.give(start, num_bytes=10)
    assert segment.take(30) == starts[0]


def life(num_bytes: int, made: Moment, freed: Moment | None, *, stream: str = "compute") -> Life:
    return Life(num_bytes * SMALL_BYTES * 2, stream, made, freed)


def test_streams_share_no_room() -> None:
    visits = (Visit("", is_forward=True, num_events=4),)
    blocks = (life(3, (0, 0), (0, 1)), life(3, (0, 2), (0, 3), stream="side stream 1"))
    assert reserved_bytes(Lives(visits, blocks)) == 6 * SMALL_BYTES * 2


def three_layers() -> Lives:
    """Layers that keep one block from forward to backward, and hand one of two on to the next layer."""
    names = ("0", "1", "2")
    visits = (
        *(Visit(name, is_forward=True, num_events=3) for name in names),
        *(Visit(name, is_forward=False, num_events=1) for name in reversed(names)),
    )
    kept = (life(1, (index, 0), (5 - index, 0)) for index in range(3))
    handed_on = (life(2, (index, 1), (index + 1, 2)) for index in range(2))
    return Lives(visits, (*kept, *handed_on))


def test_a_repeated_layer_keeps_and_hands_on_as_often() -> None:
    found = repeated(three_layers(), "1", times=2)
    forward = [visit.layer for visit in found.visits if visit.is_forward]
    backward = [visit.layer for visit in found.visits if not visit.is_forward]
    assert forward == ["0", "1", "1+1", "1+2", "2"]
    assert backward == forward[::-1]
    kept = {
        (one.made[0], one.freed[0]) for one in found.blocks if one.num_bytes == 2 * SMALL_BYTES and one.freed
    }
    assert kept == {(index, 9 - index) for index in range(5)}
    handed_on = {
        (one.made[0], one.freed[0]) for one in found.blocks if one.num_bytes > 2 * SMALL_BYTES and one.freed
    }
    assert handed_on == {(index, index + 1) for index in range(4)}
