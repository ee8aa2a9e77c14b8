"""The saves of a process: start one in the background, check for its end, wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from planc.graph.ops import SaveCheckpoint, SettleSave
from planc.runtime.checkpoint_format.layout import step_of
from planc.runtime.checkpoint_format.manifest import Base, Origin
from planc.runtime.errors import STOPS
from planc.runtime.interpreter import Position
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.checkpoint import (
    BackgroundSaves,
    Destination,
    SavePlan,
    TrainingState,
    plan_save,
)
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import named_packings, named_tensors, training_state
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Averages, Weights


@dataclass(slots=True)
class Checkpoints:
    """The saves of this process."""

    saved_step: int | None = None
    """The last step whose checkpoint is committed."""
    base: Base | None = None
    """The parameters that checkpoints of this run leave out."""
    origin: Origin | None = None
    """The checkpoint of another run that this run started from."""
    background: BackgroundSaves | None = None
    """None until a step before the first save in the background."""
    _plan: SavePlan | None = None

    @property
    def is_under_way(self) -> bool:
        return self.background is not None and self.background.is_under_way

    def plan(self, state: TrainingState) -> SavePlan:
        """Return the plan of each rank's writes, made at the first save for all. Every rank must call it."""
        if self._plan is None:
            self._plan = plan_save(named_tensors(state), packings=named_packings(state), stages=state.stages)
        return self._plan

    def prepare(self, run: Run, state: TrainingState) -> BackgroundSaves:
        """The saves in the background, whose memory a thread allocates. Every rank must call it."""
        if self.background is None:
            timeout_seconds = run.graph.init_mesh.timeout_seconds
            self.background = BackgroundSaves(device=run.device, timeout_seconds=timeout_seconds)
            self.background.prepare(state, plan=self.plan(state))
        return self.background


def start_save(
    run: Run,
    op: SaveCheckpoint,
    stopping: Stopping,
    checkpoints: Checkpoints,
    state: TrainingState,
    *,
    to: Destination,
) -> None:
    """Begin a save that `settle_save` ends. If one is under way, wait for it, or skip this one.

    Every rank does the same: `settle_save` has asked all of them after this step.
    """
    if checkpoints.is_under_way:
        if op.when_busy == "skip":
            step = to.progress.step
            run.observer.noted(f"step {step} is not saved: an earlier save is still under way")
            return
        join_save(run, stopping, checkpoints)
    with run_errors():
        checkpoints.prepare(run, state).start(state, to=to)


def settle_save(
    run: Run,
    op: SettleSave,
    at: Position,
    stopping: Stopping,
    weights: Weights,
    optimizer: Optimizer,
    checkpoints: Checkpoints,
    averages: Averages | None,
    pipeline: Pipeline | None,
) -> None:
    """Report the save under way, or raise its error, once it has ended on all ranks; wait at the end.

    After the first step, when the optimizer has all of its state, the saves to come are prepared.
    """
    saves = checkpoints.background
    if saves is None:
        if _has_saves_after(run, at):
            with run_errors():
                state = training_state(weights, optimizer, averages, pipeline, base=checkpoints.base)
                checkpoints.prepare(run, state)
    elif saves.is_under_way and (at.is_last_step or saves.has_ended()):
        join_save(run, stopping, checkpoints)


def _has_saves_after(run: Run, at: Position) -> bool:
    """Whether a save in the background is due after a step. Training waits for the save of the last step."""
    if at.is_last_step:
        return False
    saves = [op for op in run.graph.save if isinstance(op, SaveCheckpoint)]
    every = (op.every_steps for op in saves)
    return any(op.every_seconds is not None for op in saves) or any(
        steps is not None and -(-at.step // steps) * steps < run.graph.num_steps for steps in every
    )


def join_save(run: Run, stopping: Stopping, checkpoints: Checkpoints) -> None:
    """Wait for the save under way, if there is one. Its error is a RunError on every rank."""
    if checkpoints.background is None or not checkpoints.is_under_way:
        return
    with run_errors():
        directory, times = checkpoints.background.join()
    checkpoints.saved_step = step_of(directory)
    run.observer.saved(directory, behind=times)
    stopping.warn_of_grace(seconds=times.seconds)


def finish_save(run: Run, stopping: Stopping, checkpoints: Checkpoints) -> None:
    """Wait as `join_save` does, in a run that fails for another reason, which is reported first."""
    try:
        join_save(run, stopping, checkpoints)
    except STOPS:
        raise
    except BaseException as error:
        run.observer.noted(f"the save under way failed too: {error}")
