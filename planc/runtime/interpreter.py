"""Run a graph on a backend: setup once, then steps, then saves by their policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op, Stage
from planc.pipelining.orders import Action, Direction
from planc.runtime.errors import STOPS, ExitCode, OpFailure, RunError
from planc.runtime.failures import exit_code, memory_help, summary

_HELPS = {
    ExitCode.COMMUNICATION: "another rank exited or stopped responding; its output shows why",
}


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a run. Steps count from 1, 0 during setup; `micro_step` counts from 0 within a step."""

    step: int = 0
    micro_step: int = 0
    is_last_micro_step: bool = True
    stage: int = 0
    """The stage of a pipeline."""
    is_last_step: bool = False
    """No step follows. A run that is asked to stop learns it after the step's ops, before it saves."""


class Backend(Protocol):
    def execute(self, op: Op, position: Position) -> None:
        """Execute one op. `accumulate` never comes here: the interpreter unrolls it."""

    def order_of(self, op: ops.Accumulate) -> Sequence[Action]:
        """Return this rank's actions in a step of a pipeline, in order; empty without a pipeline."""

    def finish_order(self) -> None:
        """All that `order_of` had is done: wait until what it sent has left."""

    def completed_steps(self) -> int:
        """Steps that a resumed checkpoint already holds."""

    def started(self, *, first_step: int) -> None:
        """Setup is over; `first_step` comes next."""

    def ends_after(self, *, step: int) -> bool:
        """Whether the run ends after `step`, which is done: the same on every rank, and all must call it."""

    def ends_early(self, *, step: int) -> bool:
        """Whether the run ends after `step` as if it were the last: an evaluation's patience has run out, or
        the program of any rank asked for it."""

    def save_is_due(self) -> bool:
        """Tell whether the clock asks for a save of the step that is done; the same on every rank."""

    def early_stop(self) -> str:
        """The reason for which evaluations end the run, the same on every rank; empty if they do not."""

    def abandons_step(self) -> bool:
        """Whether to abandon the step between micro-batches: the same on every rank, and all must call it."""

    def abandon_step(self, *, step: int) -> None:
        """Undo what `step` has done so far; no weight has changed yet."""

    def pending_evaluations(self) -> Sequence[ops.Evaluate | ops.JudgeEvaluations]:
        """The evaluations after the last completed step that a stop request postponed."""

    def describe_rank(self) -> str:
        """`rank 3 (dp_shard 1, tp 1)`."""

    def failed(self, message: str, *, code: ExitCode) -> str | None:
        """Record that an op failed and the run ends. Return what is known of lost ranks, if there are any."""


def run(graph: Graph, backend: Backend, *, stop_after: int | None = None) -> int:
    """Run the graph, and return the last step run or resumed; RunError if an op fails."""
    *_, ended = steps(graph, backend, stop_after=stop_after)
    return ended


def steps(graph: Graph, backend: Backend, *, stop_after: int | None = None) -> Iterator[int]:
    """Yield the step that is resumed once setup is over, then each step when it is done and saved.

    `stop_after` ends the run after that step, as if it were the last: it saves what a run saves at its end.
    A run resumed at its end already has its checkpoint; its exports may be what it was started for.
    A run that is asked to stop saves whatever its plan saves, except exports, and ends after that step. A
    long step is abandoned, and its checkpoint is of the step before. A postponed evaluation is run first on
    resume.
    """
    last = graph.num_steps if stop_after is None else min(stop_after, graph.num_steps)
    for op in graph.setup:
        execute(backend, op, Position())
    completed = backend.completed_steps()
    backend.started(first_step=completed + 1)
    for op in backend.pending_evaluations():
        execute(backend, op, Position(completed))
    is_over = completed >= last or bool(backend.early_stop())
    if is_over:
        for op in graph.save:
            if not isinstance(op, ops.SaveCheckpoint):
                execute(backend, op, Position(completed))
    yield completed
    if is_over or backend.ends_after(step=completed):
        return
    for step in range(completed + 1, last + 1):
        if not _run_step(graph, backend, step, is_last_step=step == last):
            backend.abandon_step(step=step)
            _save_what_is_new(graph, backend, step - 1, is_saved=step - 1 == completed)
            return
        is_ending = _save(graph, backend, step, last_step=last)
        yield step
        if is_ending:
            return
        if step < last and backend.ends_early(step=step):
            _end_early(graph, backend, step)
            return


def _end_early(graph: Graph, backend: Backend, step: int) -> None:
    """Save what a run saves at its end, after a step that was not known to be the last."""
    position = Position(step, is_last_step=True)
    for op in graph.step:
        if isinstance(op, ops.SettleSave):
            execute(backend, op, position)
    for op in graph.save:
        if _is_due(backend, op, step, last_step=step):
            execute(backend, op, position)


def _run_step(graph: Graph, backend: Backend, step: int, *, is_last_step: bool) -> bool:
    """Run one step; False if it was abandoned before its end."""
    return all(_execute_step_op(backend, op, step, is_last_step=is_last_step) for op in graph.step)


def _save(graph: Graph, backend: Backend, step: int, *, last_step: int) -> bool:
    """Save by policy, or because the run was asked to stop: whether it ends after this step."""
    is_stopping = step < last_step and backend.ends_after(step=step)
    waited_for, has_saved = False, False
    for op in graph.save:
        if _is_due(backend, op, step, last_step=last_step) or (
            is_stopping and isinstance(op, ops.SaveCheckpoint)
        ):
            execute(backend, op, Position(step, is_last_step=is_stopping or step == last_step))
            has_saved = True
            waited_for |= isinstance(op, ops.SaveCheckpoint) and op.mode == "sync"
    if has_saved and not is_stopping and step < last_step and backend.ends_after(step=step):
        # A save can take long. One more step, and the save of that one, would take as long again.
        _save_what_is_new(graph, backend, step, is_saved=waited_for)
        return True
    return is_stopping


def _save_what_is_new(graph: Graph, backend: Backend, step: int, *, is_saved: bool) -> None:
    """Wait for the save under way, then save the finished step unless it is saved already."""
    position = Position(step, is_last_step=True)
    for op in graph.step:
        if isinstance(op, ops.SettleSave):
            execute(backend, op, position)
    for op in graph.save:
        if isinstance(op, ops.SaveCheckpoint) and not is_saved:
            execute(backend, op, position)


def _execute_step_op(backend: Backend, op: Op, step: int, *, is_last_step: bool) -> bool:
    """Execute one op of a step; False if the step is abandoned between two of its micro-batches."""
    # Not `isinstance`, which is slow for an abstract class.
    if type(op) is not ops.Accumulate:
        execute(backend, op, Position(step, is_last_step=is_last_step))
        return True
    if order := backend.order_of(op):
        _execute_order(backend, op, order, step=step, is_last_step=is_last_step)
        return True
    for micro_step in range(op.times):
        if micro_step and backend.abandons_step():
            return False
        position = Position(step, micro_step, micro_step == op.times - 1, is_last_step=is_last_step)
        for inner in op.body:
            execute(backend, inner, position)
    return True


def _execute_order(
    backend: Backend, op: ops.Accumulate, order: Sequence[Action], *, step: int, is_last_step: bool
) -> None:
    """Execute the actions of this rank's stages in a step."""
    loss = next(index for index, inner in enumerate(op.body) if isinstance(inner, ops.ComputeLoss))
    weights = tuple(inner for inner in op.body if isinstance(inner, ops.ComputeWeightGradients))
    parts = {
        Direction.FORWARD: op.body[: loss + 1],
        Direction.BACKWARD: op.body[loss + 1 : len(op.body) - len(weights)],
        Direction.WEIGHTS: weights,
    }
    last = {(action.stage, action.direction): action for action in order}
    for action in order:
        is_last = last[action.stage, action.direction] is action
        position = Position(step, action.micro_batch, is_last, action.stage, is_last_step)
        for inner in parts[action.direction]:
            execute(backend, inner, position)
    backend.finish_order()


def execute(backend: Backend, op: Op, position: Position) -> None:
    """Run one op; whatever it raises is reported with the op and its line of the plan."""
    try:
        backend.execute(op, position)
    except RunError as error:
        if error.span is None:
            error.span = op.span
        lost = backend.failed(error.message, code=error.code)
        error.help = lost or error.help
        error.record = {**_recorded(op, position, lost=lost), **error.record}
        raise
    except STOPS:
        raise
    except BaseException as error:
        where = f"step {position.step}, " if position.step else ""
        code = exit_code(error)
        message = summary(error, code=code)
        kind, _, rest = message.partition(": ")
        text = f"{kind} in op `{op.name}` ({where}{backend.describe_rank()}){': ' if rest else ''}{rest}"
        lost = backend.failed(message, code=code)
        help = lost or (memory_help(error) if code is ExitCode.MEMORY else _HELPS.get(code))
        record = _recorded(op, position, lost=lost)
        raise OpFailure(text, code=code, help=help, span=op.span, is_shared=False, record=record) from error


def _recorded(op: Op, position: Position, *, lost: str | None) -> Mapping[str, Any]:
    """The entries of status.json for a failure in an op: the last complete step, and the lost ranks."""
    step = {"step": position.step - (op.stage is not Stage.SAVE)} if position.step else {}
    return {**step, **({"lost": lost} if lost else {})}


def _is_due(backend: Backend, op: Op, step: int, *, last_step: int) -> bool:
    match op:
        case ops.SaveCheckpoint(every_steps=every_steps, at_end=at_end):
            is_every = step % every_steps == 0 if every_steps is not None else backend.save_is_due()
            return is_every or (at_end and step == last_step)
        case ops.ExportHf() | ops.ExportAdapter() | ops.ApplyAverages() | ops.PushExport():
            return op.when == "end" and step == last_step
        case _:
            raise AssertionError(f"{op.name} does not save")
