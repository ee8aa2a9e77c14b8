"""Which rank is lost, judged from records; and the records themselves, in files that ranks share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planc.graph.graph import Graph
from planc.runtime.ranks.lost_ranks import (
    MAX_NAMED,
    beat_life,
    describe,
    ended_ranks,
    mesh_places,
    process_life,
    ranks_behind,
)
from planc.runtime.ranks.whereabouts import RUN_BYTES, SIZE_BYTES, Board, Folder, State, Whereabouts, unpack
from tests.plans import QUICKSTART, checked

RUN = bytes(range(RUN_BYTES))
ALIVE = Whereabouts(
    RUN, State.RUNNING, process=1, beat=3, count=20, op=0, step=2, micro_step=0, since=100.0, host="a"
)


@pytest.fixture(scope="module")
def graph() -> Graph:
    found = checked(QUICKSTART).graph
    assert found is not None
    return found


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def life_of(process: subprocess.Popen[bytes], *, becomes: str) -> str:
    """What is said of a process, once the system has caught up with it."""
    deadline = time.monotonic() + 10
    while (found := process_life(replace(ALIVE, process=process.pid))) != becomes:
        assert time.monotonic() < deadline, f"it is {found!r}"
        time.sleep(0.01)
    return found


def test_a_record_is_read_as_it_was_written(graph: Graph, tmp_path: Path) -> None:
    board = Board(graph, run=RUN, host="höst", buffer=Folder(tmp_path).open(1))
    op = tuple(graph.ops())[5]
    board.enter(op, step=3, micro_step=1)
    none, found = Folder(tmp_path).read(2)
    assert none is None
    assert found == board.record
    assert (found.op, found.step, found.micro_step, found.count, found.host) == (5, 3, 1, 1, "höst")
    assert found.process == os.getpid()


def test_a_long_message_is_cut_and_stays_readable(graph: Graph) -> None:
    board = Board(graph, run=RUN, host="a", buffer=bytearray(SIZE_BYTES))
    board.end(State.FAILED, message="ü" * 1000)
    assert board.record.message.startswith("ü" * 150)


def test_what_a_rank_says_first_of_its_end_stays(graph: Graph) -> None:
    board = Board(graph, run=RUN, host="a", buffer=bytearray(SIZE_BYTES))
    board.end(State.FAILED, message="the reason")
    board.end(State.CUT_OFF)
    assert (board.record.state, board.record.message) == (State.FAILED, "the reason")


def test_what_is_no_record_is_none() -> None:
    assert unpack(b"") is None
    assert unpack(b"\xff" * SIZE_BYTES) is None


def test_the_last_rank_takes_the_folder_with_it(graph: Graph, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "ranks")
    for rank in range(2):
        folder.open(rank)
    folder.remove(0)
    assert folder.path.is_dir()
    folder.remove(1)
    assert not folder.path.exists()


def test_a_stopped_process_is_told_from_a_running_one(child: subprocess.Popen[bytes]) -> None:
    assert process_life(replace(ALIVE, process=child.pid)) == ""
    os.kill(child.pid, signal.SIGSTOP)
    assert life_of(child, becomes="is stopped (SIGSTOP or a debugger)")


def test_a_process_that_nobody_has_waited_for_has_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    assert life_of(child, becomes="exited without an error message")


def test_ranks_that_lost_another_are_not_blamed() -> None:
    records = (ALIVE, replace(ALIVE, state=State.CUT_OFF), replace(ALIVE, state=State.FAILED, message="nan"))
    found = ended_ranks(records, own_rank=0, life=lambda record: "")
    assert [(one.rank, one.reason) for one in found] == [(2, "failed: nan")]


def test_a_rank_whose_beat_stands_still_does_not_answer() -> None:
    before = (ALIVE, ALIVE, replace(ALIVE))
    after = (replace(ALIVE), replace(ALIVE, beat=5), replace(ALIVE))
    found = ended_ranks(after, own_rank=0, life=beat_life(before, after))
    assert [(one.rank, one.reason) for one in found] == [(2, "does not respond")]


def test_a_rank_that_has_begun_fewer_ops_stays_behind() -> None:
    records = (ALIVE, replace(ALIVE, count=19), replace(ALIVE), None)
    found = ranks_behind(records, own_rank=0)
    assert [(one.rank, one.reason) for one in found] == [(1, "is behind")]


def test_a_rank_that_has_not_left_the_op_in_which_others_gave_up_takes_no_part() -> None:
    records = (ALIVE, replace(ALIVE, state=State.CUT_OFF), replace(ALIVE))
    found = ranks_behind(records, own_rank=0)
    assert [(one.rank, one.reason) for one in found] == [(2, "does not take part")]


def test_a_description_names_host_mesh_op_line_and_duration(graph: Graph) -> None:
    records = (ALIVE, replace(ALIVE, count=1, host="node-7"))
    text = describe(ranks_behind(records, own_rank=0), graph, now=107.0)
    place = ", ".join(("node-7", *(f"{dim} {at}" for dim, at in mesh_places(graph, rank=1).items())))
    line = next(graph.ops()).span
    assert line is not None
    assert text == (
        f"rank 1 ({place}) is behind, in op `mesh.init` at step 2, {line.file}:{line.line}, for 7 s"
    )


def test_many_lost_ranks_are_counted(graph: Graph) -> None:
    records = (ALIVE, *(replace(ALIVE, state=State.DONE) for _ in range(MAX_NAMED + 2)))
    text = describe(ended_ranks(records, own_rank=0, life=lambda record: ""), graph, now=100.0)
    assert text.endswith("and 2 more ranks")
