"""A backend that only records what it is asked to do: for tests, and to see a run without running it."""

from __future__ import annotations

from collections.abc import Sequence

from planc.graph.op import Op
from planc.graph.ops import OPS, Accumulate, Evaluate
from planc.pipelining.orders import Action
from planc.runtime.errors import ExitCode
from planc.runtime.interpreter import Position

HANDLED = tuple(op for op in OPS if op is not Accumulate)


class NullBackend:
    """Records (position, op) pairs; `resumed_steps` plays a checkpoint, `told_at` the end of a step at which
    the run is asked to stop, `left_at` a step that is abandoned after its first micro-batch, and `ended_at`
    one after which the program ends the run."""

    def __init__(
        self,
        *,
        resumed_steps: int = 0,
        told_at: int | None = None,
        left_at: int | None = None,
        ended_at: int | None = None,
    ) -> None:
        self.ended_at = ended_at
        self.resumed_steps, self.told_at, self.left_at = resumed_steps, told_at, left_at
        self.num_left = 0
        self.executed: list[tuple[Position, Op]] = []

    def execute(self, op: Op, position: Position) -> None:
        assert isinstance(op, HANDLED), f"no handler for {op.name}"
        self.executed.append((position, op))

    def order_of(self, op: Accumulate) -> Sequence[Action]:
        return ()

    def finish_order(self) -> None: ...

    def completed_steps(self) -> int:
        return self.resumed_steps

    def started(self, *, first_step: int) -> None: ...

    def ends_after(self, *, step: int) -> bool:
        return step == self.told_at

    def ends_early(self, *, step: int) -> bool:
        return step == self.ended_at

    def save_is_due(self) -> bool:
        return False

    def early_stop(self) -> str:
        return ""

    def abandons_step(self) -> bool:
        return self.left_at is not None and self.left_at == self._step()

    def abandon_step(self, *, step: int) -> None:
        self.num_left += 1

    def pending_evaluations(self) -> tuple[Evaluate, ...]:
        return ()

    def _step(self) -> int:
        return self.executed[-1][0].step

    def describe_rank(self) -> str:
        return "rank 0"

    def failed(self, message: str, *, code: ExitCode) -> str | None:
        return None
