"""The observers of a run other than its own display: each rank's log, and trackers on rank 0."""

from __future__ import annotations

import os
import socket

from planc.graph.ops import OpenLog, Tracker
from planc.outgoing import redactor
from planc.runtime.ranks.lost_ranks import mesh_places
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.torch.reporting.instruments import Instruments
from planc.runtime.torch.reporting.profile import stop_trace
from planc.runtime.torch.run import Run
from planc.runtime.trackers import Following, Opening
from planc.runtime.trackers.tensorboard import TensorboardTracker
from planc.runtime.trackers.tracker import Open
from planc.runtime.trackers.wandb import wandb_opener


def open_log(run: Run, op: OpenLog, instruments: Instruments) -> None:
    """Add the observers that the op names."""
    rank = run.launch.rank
    if op.per_rank:
        places = mesh_places(run.graph, rank=rank)
        instruments.rank_log = RankLog(
            run.paths.run, rank=rank, host=socket.gethostname(), mesh=places, effort=run.effort
        )
        run.observer.observers.append(instruments.rank_log)
    if op.trackers and rank == 0:
        instruments.following = Following(
            {tracker.kind: _opener(tracker) for tracker in op.trackers},
            opening=lambda first_step: _opening(run, first_step),
            say=run.observer.noted,
            redact=redactor(os.environ),
        )
        run.observer.observers.append(instruments.following)


def close_log(run: Run, instruments: Instruments, *, is_done: bool) -> None:
    """Close the observers. A trace under way is written, unless the run failed during it."""
    if is_done:
        stop_trace(run, instruments)
    if instruments.following is not None:
        instruments.following.close(is_done=is_done)


def _opener(tracker: Tracker) -> Open:
    return TensorboardTracker if tracker.kind == "tensorboard" else wandb_opener(tracker)


def _opening(run: Run, first_step: int) -> Opening:
    return Opening(
        run_folder=run.paths.run,
        plan_name=run.graph.name,
        plan_hash=run.plan_hash,
        mesh={mesh_dim.value: size for mesh_dim, size in run.graph.mesh},
        first_step=first_step,
    )
