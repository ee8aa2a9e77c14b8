"""Which rank is lost, judged from records; and the records themselves, in files that ranks share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
from tests.parity.cases import Case, compile_case, make_workspace
from tests.patience import wait_until
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
    wait_until(
        lambda: process_life(replace(ALIVE, process=process.pid)) == becomes, f"a process that {becomes}"
    )
    return becomes


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


def test_a_rank_that_has_begun_fewer_ops_stays_behind(graph: Graph) -> None:
    records = (ALIVE, replace(ALIVE, count=19), replace(ALIVE), None)
    found = ranks_behind(records, graph, own_rank=0)
    assert [(one.rank, one.reason) for one in found] == [(1, "is behind")]


def test_a_rank_that_has_not_left_the_op_in_which_others_gave_up_takes_no_part(graph: Graph) -> None:
    records = (ALIVE, replace(ALIVE, state=State.CUT_OFF), replace(ALIVE))
    found = ranks_behind(records, graph, own_rank=0)
    assert [(one.rank, one.reason) for one in found] == [(2, "does not take part")]


def test_a_description_names_host_mesh_op_line_and_duration(graph: Graph) -> None:
    records = (ALIVE, replace(ALIVE, count=1, host="node-7"))
    text = describe(ranks_behind(records, graph, own_rank=0), graph, now=107.0)
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


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Four stages, each on two ranks."""
    workspace = make_workspace(tmp_path_factory.mktemp("lost") / "workspace")
    case = Case("PP4·TP2", "", {"pp": 4, "tp": 2}, model="llama-deep", micro_batch=1)
    return compile_case(case, workspace=workspace)


def at(
    graph: Graph, name: str, *, what: str = "", count: int = 20, state: State = State.RUNNING
) -> Whereabouts:
    """The record of a rank in an op, of gradients or activations if it is a message."""
    (index,) = (
        index
        for index, op in enumerate(graph.ops())
        if op.name == name and (not what or getattr(op, "what", "") == what)
    )
    return replace(ALIVE, op=index, count=count, state=state)


@pytest.mark.parametrize("own_rank", [0, 2, 6])
def test_stages_that_wait_for_a_message_are_not_blamed(staged: Graph, own_rank: int) -> None:
    """Rank 4, of the third stage, hangs: the first two wait for gradients, the last one for activations."""
    records = [
        *[at(staged, "pipeline.receive", what="gradients", count=40)] * 2,
        *[at(staged, "pipeline.receive", what="gradients", count=30)] * 2,
        at(staged, "forward", count=20),
        at(staged, "pipeline.receive", what="gradients", count=22),
        *[at(staged, "pipeline.receive", what="activations", count=10)] * 2,
    ]
    (found,) = ranks_behind(records, staged, own_rank=own_rank)
    assert found.rank == 4
    assert found.reason == ("is behind" if own_rank != 6 else "does not take part")


def test_a_stage_in_a_collective_blames_whom_those_behind_wait_for(staged: Graph) -> None:
    cut_off = at(staged, "pipeline.receive", what="activations", count=10, state=State.CUT_OFF)
    records = [
        *[at(staged, "grads.clip", count=50)] * 2,
        at(staged, "pipeline.send", what="gradients", count=45),
        at(staged, "backward", count=44),
        *[at(staged, "pipeline.receive", what="activations", count=40)] * 2,
        *[cut_off] * 2,
    ]
    found = ranks_behind(records, staged, own_rank=0)
    assert [(one.rank, one.reason) for one in found] == [(3, "is behind")]


def test_stages_that_wait_in_a_circle_are_named_as_before(staged: Graph) -> None:
    records = [
        *[at(staged, "pipeline.receive", what="gradients", count=40)] * 2,
        *[at(staged, "pipeline.receive", what="activations", count=30)] * 6,
    ]
    found = ranks_behind(records, staged, own_rank=0)
    assert found
    assert {one.reason for one in found} == {"is behind"}
