"""The observers of a run other than its own display: each rank's log, and trackers on rank 0."""

from __future__ import annotations

import os
import socket

from planc.graph.ops import OpenLog, Tracker
from planc.runtime.interpreter import Position
from planc.runtime.observer import Together
from planc.runtime.ranks.lost_ranks import mesh_places
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.torch.reporting.profile import stop_trace
from planc.runtime.torch.session import Session
from planc.runtime.trackers import Following, Opening
from planc.runtime.trackers.tensorboard import TensorboardTracker
from planc.runtime.trackers.tracker import Open
from planc.runtime.trackers.wandb import wandb_opener
from planc.secrets import redactor


def open_log(session: Session, op: OpenLog, position: Position) -> None:
    """Add the observers that the op names."""
    rank = session.launch.rank
    if op.per_rank:
        places = mesh_places(session.graph, rank=rank)
        session.rank_log = RankLog(
            session.paths.run, rank=rank, host=socket.gethostname(), mesh=places, effort=session.effort
        )
        session.observer = Together((session.observer, session.rank_log))
    if op.trackers and rank == 0:
        session.following = Following(
            {tracker.kind: _opener(tracker) for tracker in op.trackers},
            opening=lambda first_step: _opening(session, first_step),
            say=session.observer.noted,
            redact=redactor(os.environ),
        )
        session.observer = Together((session.observer, session.following))


def close_log(session: Session, *, is_done: bool) -> None:
    """Close the observers. A trace under way is written, unless the run failed during it."""
    if session.trace is not None and is_done:
        stop_trace(session)
    if session.following is not None:
        session.following.close(is_done=is_done)


def _opener(tracker: Tracker) -> Open:
    return TensorboardTracker if tracker.kind == "tensorboard" else wandb_opener(tracker)


def _opening(session: Session, first_step: int) -> Opening:
    return Opening(
        run_folder=session.paths.run,
        plan_name=session.graph.name,
        plan_hash=session.plan_hash,
        mesh={mesh_dim.value: size for mesh_dim, size in session.graph.mesh},
        first_step=first_step,
    )
