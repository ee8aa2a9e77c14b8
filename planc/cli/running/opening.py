"""Opens what a run needs before its first op: the store where ranks meet, and its fixed facts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from planc.cli.running.compiled import Compiled, work_of
from planc.cli.running.resuming import refuse_old_checkpoints
from planc.cli.running.run_errors import report
from planc.cli.running.watching import Listener
from planc.estimate.at_intervals import predictions
from planc.graph.graph import Graph
from planc.hub.user_dirs import data_dir
from planc.runtime.collectives import SKIP_CHECK
from planc.runtime.observer import Together
from planc.runtime.process import Launch
from planc.runtime.ranks.rank_claims import Claim
from planc.runtime.ranks.statements import Statements
from planc.runtime.ranks.watch import Watch
from planc.runtime.run_directory.directory import RunDirectory
from planc.runtime.stopping.stop_points import StopPoints

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

    from planc.runtime.torch.backend import TorchBackend
    from planc.runtime.torch.run import Run


def meet(
    compiled: Compiled,
    launch: Launch,
    *,
    device: torch.device,
    claim: Claim,
    readers: Sequence[str],
) -> Store:
    """The store where all ranks have met, after checking that they run the same plan in the same way."""
    # Imported lazily, as all of torch is.
    from planc.runtime.torch.agreement.surroundings import note_surroundings
    from planc.runtime.torch.parallel.mesh import connect

    reads = compiled.reads()
    # Ranks call them together.
    reads.add("readers", "callbacks and metrics", ", ".join(readers) or "none")
    if launch.world_size > 1:
        note_surroundings(reads, compiled.graph, device=device)
    timeout = compiled.graph.init_mesh.timeout_seconds
    return connect(launch, device=device, timeout_seconds=timeout, entries=reads.take(), claim=claim)


def run_of(
    compiled: Compiled,
    launch: Launch,
    directory: RunDirectory,
    listener: Listener,
    *,
    store: Store,
    observer: Together,
    device: torch.device,
) -> Run:
    """Return the fixed facts of this run, with watches of the other ranks if there are any."""
    # Imported lazily, as all of torch is.
    from planc.runtime.torch.run import Paths, Run

    paths = Paths(base=compiled.base, run=directory.path, prepared=data_dir())
    refuse_old_checkpoints(compiled.graph, paths.checkpoints)
    others: dict[str, Any] = {}
    if launch.world_size > 1:
        has_nccl = device.type == "cuda"
        others = _watch_others(compiled.graph, launch, store, listener, directory, has_nccl=has_nccl)
    return Run(
        *(compiled.graph, listener.plan_hash, launch, paths, observer, device),
        runs_extensions=True,
        sources=compiled.sources,
        overrides=compiled.overrides,
        work=work_of(compiled),
        statements=Statements(store, launch.rank, launch.world_size),
        notice=listener.notice,
        effort=directory.effort,
        **others,
    )


def _watch_others(
    graph: Graph,
    launch: Launch,
    store: Store,
    listener: Listener,
    directory: RunDirectory,
    *,
    has_nccl: bool,
) -> dict[str, Any]:
    """Watch the other ranks: where they are, whether they are lost, and whether they got a signal."""
    init = graph.init_mesh
    watch = Watch(graph, launch, store=store, run_folder=directory.path, effort=directory.effort)
    points = StopPoints(
        listener.notice,
        store=store,
        rank=launch.rank,
        world_size=launch.world_size,
        timeout_seconds=init.timeout_seconds,
    )
    report_error = partial(report, launch=launch, directory=directory)
    listener.keep_watch(watch, points, init, report=report_error, has_nccl=has_nccl)
    return {"store": store, "watch": watch, "stop_points": points}


def count_first_step(backend: TorchBackend, compiled: Compiled, *, is_skipped: bool) -> None:
    """Compare the first step's collectives, or note why that can't be."""
    # Imported lazily, as all of torch is.
    from planc.runtime.torch.reporting.first_step import FirstStep

    run = backend.run
    predicted = None
    if is_skipped or compiled.inventory is None:
        reason = SKIP_CHECK if is_skipped else "a compiled plan has no inventory to predict them from"
        run.observer.noted(f"the collectives of the first step are not checked: {reason}")
    else:
        predicted = predictions(
            *(run.graph, compiled.inventory),
            rank=run.launch.rank,
            is_cuda=run.device.type == "cuda",
            logs_sample_ids=run.reports_sample_ids,
        )
    backend.instruments.first_step = FirstStep(run.graph, predicted)
