"""Runs a graph on a backend: setup once, then steps, then saves as their policy says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import Accumulate, ExportHf, SaveCheckpoint
from planc.runtime.errors import ExitCode, OpFailure, RunError
from planc.runtime.failures import MEMORY_HELP, exit_code, summary

_HELPS = {
    ExitCode.COMMUNICATION: "another rank ended or stopped answering; what it printed says why",
    ExitCode.MEMORY: MEMORY_HELP,
}


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run is. Steps count from 1, 0 during setup; `micro_step` counts from 0 within a step."""

    step: int = 0
    micro_step: int = 0
    is_last_micro_step: bool = True
    is_last_step: bool = False
    """No step follows. A run that is told to end knows it once the step's ops are done, before it saves."""


class Backend(Protocol):
    def execute(self, op: Op, position: Position) -> None:
        """Carries out one op. `accumulate` never comes here: the interpreter unrolls it."""

    def completed_steps(self) -> int:
        """Steps that a resumed checkpoint already holds."""

    def started(self, *, first_step: int) -> None:
        """Setup is over; `first_step` comes next."""

    def is_told_to_end(self, *, step: int) -> bool:
        """Whether the run is to end after `step`, which is done: the same on every rank. All must ask it."""

    def describe_rank(self) -> str:
        """`rank 3 (dp_shard 1, tp 1)`."""

    def failed(self, message: str, *, code: ExitCode) -> str | None:
        """An op failed here, and the run ends. What is known of ranks that this one lost, if it lost any."""


def run(graph: Graph, backend: Backend, *, stop_after: int | None = None) -> int:
    """The number of the last step run or resumed; RunError where an op fails.

    `stop_after` ends the run early, after that step, as its last: what is saved at the end is saved then.
    A run resumed at its end has its checkpoint already; its exports may be what it was started for.
    A run that is told to end saves whatever its plan saves, exports aside, and ends after that step.
    """
    last = graph.num_steps if stop_after is None else min(stop_after, graph.num_steps)
    for op in graph.setup:
        _execute(backend, op, Position())
    completed = backend.completed_steps()
    backend.started(first_step=completed + 1)
    ended = max(completed, last)
    if completed < last and backend.is_told_to_end(step=completed):
        ended = completed
    for step in range(completed + 1, ended + 1):
        for op in graph.step:
            _execute_step_op(backend, op, step, is_last_step=step == last)
        is_told = step < last and backend.is_told_to_end(step=step)
        for op in graph.save:
            if _is_due(op, step, last_step=last) or (is_told and isinstance(op, SaveCheckpoint)):
                _execute(backend, op, Position(step, is_last_step=is_told or step == last))
        if is_told:
            ended = step
            break
    if completed >= last:
        for op in graph.save:
            if isinstance(op, ExportHf):
                _execute(backend, op, Position(completed))
    return ended


def _execute_step_op(backend: Backend, op: Op, step: int, *, is_last_step: bool) -> None:
    if not isinstance(op, Accumulate):
        _execute(backend, op, Position(step, is_last_step=is_last_step))
        return
    for micro_step in range(op.times):
        position = Position(step, micro_step, micro_step == op.times - 1, is_last_step)
        for inner in op.body:
            _execute(backend, inner, position)


def _execute(backend: Backend, op: Op, position: Position) -> None:
    """Runs one op; whatever it raises leaves with the op and its line of the plan."""
    try:
        backend.execute(op, position)
    except RunError as error:
        if error.span is None:
            error.span = op.span
        error.help = backend.failed(error.message, code=error.code) or error.help
        raise
    except Exception as error:
        where = f"step {position.step}, " if position.step else ""
        code = exit_code(error)
        found = summary(error, code=code)
        kind, _, rest = found.partition(": ")
        text = f"{kind} in op `{op.name}` ({where}{backend.describe_rank()}){': ' if rest else ''}{rest}"
        lost = backend.failed(found, code=code)
        help = lost or _HELPS.get(code)
        raise OpFailure(text, code=code, help=help, span=op.span, is_shared=False) from error


def _is_due(op: Op, step: int, *, last_step: int) -> bool:
    match op:
        case SaveCheckpoint(every_steps=every_steps, at_end=at_end):
            is_every = every_steps is not None and step % every_steps == 0
            return is_every or (at_end and step == last_step)
        case ExportHf(when="end"):
            return step == last_step
        case _:
            raise AssertionError(f"{op.name} is no op that saves")
