"""Background saves of a run: start them, check for their end, wait for them."""

from __future__ import annotations

from planc.graph.ops import SaveCheckpoint, SettleSave
from planc.runtime.checkpoint_format.layout import step_of
from planc.runtime.errors import STOPS
from planc.runtime.interpreter import Position
from planc.runtime.observer import SaveTimes
from planc.runtime.torch.checkpoint import BackgroundSaves, Destination, SavePlan, plan_save
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import named_packings, named_tensors
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.preemption import warn_of_grace


def start_save(session: Session, op: SaveCheckpoint, *, to: Destination) -> None:
    """Begin a save that `settle_save` ends. If one is under way, wait for it, or skip this one.

    Every rank does the same: `settle_save` has asked all of them after this step.
    """
    saves = session.saves
    if saves is not None and saves.is_under_way:
        if op.when_busy == "skip":
            step = to.progress.step
            session.observer.noted(f"step {step} is not saved: an earlier save is still under way")
            return
        join_save(session)
    if saves is None:
        timeout_seconds = session.graph.init_mesh.timeout_seconds
        saves = session.saves = BackgroundSaves(device=session.device, timeout_seconds=timeout_seconds)
    with run_errors():
        saves.start(session.training_state, to=to, plan=kept_plan(session))


def kept_plan(session: Session) -> SavePlan:
    """Which rank writes what: made at the first save, for all of them. Every rank must call it."""
    if session.save_plan is None:
        state = session.training_state
        session.save_plan = plan_save(
            named_tensors(state), packings=named_packings(state), stages=state.stages
        )
    return session.save_plan


def settle_save(session: Session, op: SettleSave, position: Position) -> None:
    """Report the save under way, or raise its error, once it has ended on all ranks; wait at the end."""
    saves = session.saves
    if saves is not None and saves.is_under_way and (position.is_last_step or saves.has_ended()):
        join_save(session)


def join_save(session: Session) -> None:
    """Wait for the save under way, if there is one. Its error is a RunError on every rank."""
    if session.saves is None or not session.saves.is_under_way:
        return
    with run_errors():
        saved = session.saves.join()
    session.saved_step = step_of(saved.directory)
    session.observer.saved(saved.directory, behind=SaveTimes(saved.seconds, saved.blocked_seconds))
    warn_of_grace(session, seconds=saved.seconds)


def finish_save(session: Session) -> None:
    """Wait as `join_save` does, in a run that fails for another reason, which is reported first."""
    try:
        join_save(session)
    except STOPS:
        raise
    except BaseException as error:
        session.observer.noted(f"the save under way failed too: {error}")
