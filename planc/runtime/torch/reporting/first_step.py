"""The collectives of a run's first step, compared with those that the plan's graph predicts.

A dispatch mode counts them, and only in that step. It knows each one's kind, group and bytes, below DTensor
and FSDP and in compiled modules, where a process group's own counter knows only the group.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import CompareReplicas, Log, NextBatch, ReadGradients
from planc.runtime import collectives
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.ranks.groups import groups_of
from planc.runtime.torch.parallel.collectives import CollectiveRecorder
from planc.runtime.torch.run import Run

_RARE = (Log, CompareReplicas)
_LARGE_NORM = 1e18
"""Far below the square root of float32's largest number."""


class FirstStep:
    """Counts from a step's batch to its optimizer step, and each op that is not due in every step when it is.

    A rank without a prediction does not count, and still agrees with the others, which may have one.
    """

    def __init__(self, graph: Graph, predicted: collectives.Predictions | None) -> None:
        self.predicted = predicted
        self._recorders: dict[str, CollectiveRecorder] = {}
        self._pending = {collectives.STEP, *(op.name for op in graph.step if isinstance(op, _RARE))}
        """The ops that end a count, until it is compared."""

    @property
    def is_over(self) -> bool:
        """Whether everything has been compared."""
        return not self._pending

    @property
    def counts_steps(self) -> bool:
        """Whether no step has been compared yet."""
        return collectives.STEP in self._pending

    def counting(self, op: Op, position: Position) -> contextlib.AbstractContextManager[object]:
        """The context in which an op of a step is executed."""
        if isinstance(op, NextBatch):
            self._recorders.clear()
        is_pending = op.name in self._pending if isinstance(op, _RARE) else self.counts_steps
        # The plan's own code decides what it gathers.
        if self.predicted is None or position.step == 0 or not is_pending or isinstance(op, ReadGradients):
            return contextlib.nullcontext()
        return self._recorders.setdefault(op.name, CollectiveRecorder(names_unknown=True))

    def compare(self, run: Run, op: Op, position: Position, *, gradient_norm: float) -> None:
        """After an op: RunError on every rank if it ends a count, and one of them sent other collectives.

        The next step is compared instead if this one has gradients so large, or not finite, that their norm
        was measured twice.
        """
        if op.name not in self._pending:
            return
        if isinstance(op, _RARE):
            if not op.is_due(step=position.step, num_steps=run.graph.num_steps):
                return
        elif not gradient_norm < _LARGE_NORM:
            return
        self._pending.remove(op.name)
        rank = run.launch.rank
        own = collectives.Differences(rank, (), ())
        sent = self._sent(run, op)
        if self.predicted is not None:
            own = collectives.differences(rank, self.predicted.get(op.name, {}), sent)
        is_different = torch.tensor(int(own.in_number != () or own.in_size != ()), device=run.device)
        dist.all_reduce(is_different, op=dist.ReduceOp.MAX)
        if not is_different.item():
            return
        found = [(rank, own.data())]
        if run.statements is not None:
            found = run.statements.gather(f"collectives/{op.name}/{position.step}", own.data())
        text = (
            collectives.describe(collectives.differences_of(*one) for one in found)
            or "another rank sent others"
        )
        raise RunError(
            f"step {position.step} did not send the collectives that its graph predicts: {text}",
            code=ExitCode.INTERNAL,
            help="unless the model's own code communicates, this is a bug in planc: report it with the plan "
            f"and what `planc check --deep` finds; {collectives.SKIP_CHECK} trains without this check",
            span=run.graph.init_mesh.span,
        )

    def _sent(self, run: Run, ending: Op) -> collectives.Sent:
        """This rank's collectives in groups of several ranks, of the count that an op ends.

        A step's count is without the ops that have a count of their own, which may come before its end.
        """
        groups = groups_of(run.graph, rank=run.launch.rank)
        rare = {op.name for op in run.graph.step if isinstance(op, _RARE)}
        counted = {ending.name} if ending.name in rare else self._recorders.keys() - rare
        return {
            (op, kind, (*groups.get(ranks, map(str, ranks)),), num_bytes): count
            for op, recorder in self._recorders.items()
            if op in counted
            for (kind, ranks, num_bytes), count in recorder.calls.items()
            if len(ranks) > 1
        }
