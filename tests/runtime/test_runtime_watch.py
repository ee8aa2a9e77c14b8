"""A rank's watch: in files and in a real store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import CompileModules, Forward, NextBatch, SaveCheckpoint, SyncGradients
from planc.runtime.process import Launch
from planc.runtime.ranks import watch
from planc.runtime.ranks.watch import Watch
from planc.runtime.ranks.whereabouts import Folder, State
from tests.patience import WAIT_SECONDS
from tests.plans import QUICKSTART, checked


@pytest.fixture(scope="module")
def graph() -> Graph:
    found = checked(QUICKSTART).graph
    assert found is not None
    return found


def watches(graph: Graph, folder: Path, *, local: int | None) -> tuple[Watch, Watch]:
    store = HashStore()
    first, second = (Launch(rank, 2, rank, local_world_size=local) for rank in range(2))
    return (
        Watch(graph, first, store=store, run_folder=folder),
        Watch(graph, second, store=store, run_folder=folder),
    )


@pytest.mark.parametrize("local", [2, None], ids=["one machine", "several machines"])
def test_a_rank_that_failed_is_named_by_the_other(graph: Graph, tmp_path: Path, local: int | None) -> None:
    first, second = watches(graph, tmp_path, local=local)
    second.enter(next(graph.ops()), step=0, micro_step=0)
    second.failed("ValueError: no such file\nwith more")
    text = first.cut_off()
    assert text is not None
    assert "failed: ValueError: no such file, in op `mesh.init`" in text


def test_a_store_that_ended_with_rank_0_is_said_to_have(graph: Graph, tmp_path: Path) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    Watch(graph, Launch(0, 2), store=server, run_folder=tmp_path)
    store = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=5))
    second = Watch(graph, Launch(1, 2), store=store, run_folder=tmp_path)
    del server
    text = second.cut_off()
    assert text is not None
    assert "the rendezvous store does not respond: rank 0" in text


def test_ranks_that_all_lost_another_blame_nobody(graph: Graph, tmp_path: Path) -> None:
    first, second = watches(graph, tmp_path, local=2)
    second.cut_off()
    assert first.known_lost() is None


def test_a_rank_elsewhere_that_falls_silent_is_known_to_be_lost(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MUTE_SECONDS", 0.0)
    first, second = watches(graph, tmp_path, local=None)
    assert second.store is not None
    second._publish(second.store)
    assert first.known_lost() is None
    second._publish(second.store)
    assert first.known_lost() is None
    text = first.known_lost()
    assert text is not None
    assert "rank 1 " in text and "does not respond" in text


def test_a_rank_that_came_to_its_end_is_not_lost(graph: Graph, tmp_path: Path) -> None:
    first, second = watches(graph, tmp_path, local=2)
    second.board.end(State.DONE)
    assert first.known_lost() is None


def test_records_of_an_earlier_run_are_not_read(graph: Graph, tmp_path: Path) -> None:
    _, second = watches(graph, tmp_path, local=2)
    second.failed("long ago")
    again = Watch(graph, Launch(0, 2, 0, local_world_size=2), store=HashStore(), run_folder=tmp_path)
    assert again.known_lost() is None


def test_a_run_that_ends_well_leaves_no_records(graph: Graph, tmp_path: Path) -> None:
    for one in watches(graph, tmp_path, local=2):
        one.close()
    assert not (tmp_path / "ranks").exists()


def test_ranks_that_leave_at_once_take_the_folder_away_together(tmp_path: Path) -> None:
    folder, num_ranks = Folder(tmp_path / "ranks"), 8
    for _ in range(50):
        for rank in range(num_ranks):
            folder.open(rank).close()
        together = threading.Barrier(num_ranks)

        def leave(rank: int, together: threading.Barrier = together) -> None:
            together.wait()
            folder.remove(rank)

        with ThreadPoolExecutor(num_ranks) as pool:
            list(pool.map(leave, range(num_ranks)))
        assert not folder.path.exists()


def test_only_one_thread_tells_what_ended_a_rank(graph: Graph, tmp_path: Path) -> None:
    first, _ = watches(graph, tmp_path, local=2)
    assert first.claim()
    assert not first.claim()


def op_of(graph: Graph, kind: type[Op]) -> Op:
    return next(op for op in graph.ops() if isinstance(op, kind))


def test_an_op_that_takes_too_long_is_told_once(graph: Graph, tmp_path: Path) -> None:
    first, second = watches(graph, tmp_path, local=2)
    second.failed("gone")
    first.enter(op_of(graph, Forward), step=1, micro_step=0)
    told: list[str] = []
    heard = threading.Event()
    first.start(timeout_seconds=-1, overdue=lambda text: (told.append(text), heard.set())[0])
    assert heard.wait(WAIT_SECONDS)
    first.close()
    assert len(told) == 1
    assert "rank 1 " in told[0]
    assert "failed: gone" in told[0]


def overdue_at(graph: Graph, folder: Path, kind: type[Op], *, steps: tuple[int, ...]) -> bool:
    """Whether an op of this kind is, the moment that it begins, after it began in all but the last step."""
    first, _ = watches(graph, folder, local=2)
    for step in steps:
        first.enter(op_of(graph, kind), step=step, micro_step=0)
    return first._is_overdue(-1.0)


@pytest.mark.parametrize(
    ("kind", "is_timed"),
    [(Forward, True), (SyncGradients, True), (NextBatch, False), (SaveCheckpoint, False)],
)
def test_what_reads_or_writes_files_takes_its_time(
    graph: Graph, tmp_path: Path, kind: type[Op], is_timed: bool
) -> None:
    assert overdue_at(graph, tmp_path, kind, steps=(1,)) is is_timed


def test_a_first_step_that_compiles_takes_its_time(graph: Graph, tmp_path: Path) -> None:
    wrap = CompileModules(
        backend="inductor", mode=None, fullgraph=True, dynamic=False, loss=True, modules=("lm_head",)
    )
    compiling = replace(graph, setup=(*graph.setup, wrap))
    assert not overdue_at(compiling, tmp_path, Forward, steps=(7,))
    assert overdue_at(compiling, tmp_path, Forward, steps=(7, 8))
