"""The torch backend: executes ops on this rank, by the handlers of one table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from statistics import mean

from torch import nn
from torch.optim import Optimizer

from planc.graph import ops
from planc.graph.op import Op
from planc.pipelining.orders import Action
from planc.runtime.errors import ExitCode
from planc.runtime.interpreter import Position
from planc.runtime.observer import Step
from planc.runtime.ranks.lost_ranks import coordinates
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.checkpoint.background_saving import Checkpoints, finish_save
from planc.runtime.torch.dispatch import Call, State, bind_all
from planc.runtime.torch.handlers import HANDLERS
from planc.runtime.torch.parallel.fsdp import reshard
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.reporting.instruments import Instruments
from planc.runtime.torch.reporting.log import close_log
from planc.runtime.torch.reporting.metrics import figures_of
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import (
    Batch,
    Data,
    Evaluations,
    History,
    Perform,
    Schedule,
    Update,
    Verdict,
    Weights,
)
from planc.runtime.torch.training.bad_steps import guard_of
from planc.runtime.torch.training.judging import early_stop
from planc.runtime.torch.training.pipeline_messages import finish_sends
from planc.runtime.torch.weights.freezing import PLACING, require_frozen
from planc.vocab import MeshDim


class TorchBackend:
    """Executes ops on this rank. The process group must exist; see `mesh.connect`."""

    handlers: Mapping[type[Op], Call] = bind_all(HANDLERS)

    def __init__(self, run: Run) -> None:
        self.run = run
        self.instruments, self.stopping = Instruments(run), Stopping(run)
        self.state = State(run, History(), Checkpoints(), self.instruments, self.stopping)
        self.state.values[Perform] = self._perform
        self._execute = {kind: call.function() for kind, call in self.handlers.items()}
        self._decides = ops.GuardStep if guard_of(run) is not None else ops.ReduceMetrics
        """The op that reads the step's numbers from the device."""

    def execute(self, op: Op, position: Position) -> None:
        instruments, kind = self.instruments, type(op)
        readers = instruments.readers if kind is ops.StepOptimizer else None
        if readers is not None:
            figures = self.figures(step=position.step)
            readers.before_update(figures, self.state[Weights], self.state.get(Pipeline))
        elif kind is ops.Log and instruments.readers is not None and self.state[Evaluations].done:
            figures = self.figures(step=position.step)
            instruments.readers.after_evaluations(figures, self.state[Evaluations].done)
        instruments.enter(op, position)
        if instruments.trace is None and instruments.first_step is None:
            self._handle(op, position)
        else:
            with instruments.around(op, position):
                self._handle(op, position)
            instruments.compare(op, position, self.state.get(Verdict))
        if readers is not None:
            readers.after_update(figures)
        elif kind is ops.NextBatch:
            instruments.has_read(self.state[Batch])
        elif kind is self._decides:
            instruments.has_decided()

    def _handle(self, op: Op, at: Position) -> None:
        values = self.state.values
        values[Position] = at
        self._execute[type(op)](self.run, op, values)
        if type(op) in PLACING:
            require_frozen(self.run.graph, op, self.state[nn.Module])

    def _perform(self, body: Sequence[Op], at: Position, /, *records: object) -> None:
        state = self.state.with_records(at, *records)
        for op in body:
            self._execute[type(op)](self.run, op, state.values)

    def order_of(self, op: ops.Accumulate) -> Sequence[Action]:
        pipeline = self.state.get(Pipeline)
        return pipeline.order if pipeline is not None else ()

    def finish_order(self) -> None:
        finish_sends(self.state[Pipeline])

    def completed_steps(self) -> int:
        update = self.state.get(Update)
        return update.step if update is not None else 0

    def started(self, *, first_step: int) -> None:
        if self.run.watch is not None:
            # With a watch, this process is one rank, and all its waits are that rank's.
            pipeline, shares = self.state.get(Pipeline), None
            if pipeline is not None:
                shares = shares_of_ranks(self.run, self.state[Mesh], self.state[nn.Module], pipeline)
            self.instruments.own_time = OwnTime(has_device_queue=self.run.has_queue, shares=shares)
        self.stopping.save_begins()
        if origin := self.state[Checkpoints].origin:
            self.run.observer.branched(origin.model_dump())
        self.run.observer.started(first_step=first_step, num_steps=self.run.graph.num_steps)

    def ends_after(self, *, step: int) -> bool:
        is_ending = self.stopping.ends_after(step=step)
        if is_ending:
            self.instruments.write_line()
        return is_ending

    def ends_early(self, *, step: int) -> bool:
        readers = self.instruments.readers
        if readers is not None and readers.request is not None:
            self.run.notice.ends_early = True
        is_ending = self.stopping.ends_early() or bool(self.early_stop())
        if is_ending:
            self.instruments.write_line()
        return is_ending

    def save_is_due(self) -> bool:
        return self.stopping.save_is_due

    def early_stop(self) -> str:
        return early_stop(self.run.graph, self.state[History])

    def figures(self, *, step: int) -> Step:
        """The figures of the step that is done."""
        return figures_of(self.run, self.state[Verdict], self.state[Schedule], step=step)

    def abandons_step(self) -> bool:
        return self.stopping.stops_here(in_step=True)

    def abandon_step(self, *, step: int) -> None:
        """Drop the micro-batches that a step has done: no weight has changed, and its data comes again."""
        self.instruments.write_line()
        loader = self.state[Data].loader
        loader.load_state(loader.samples_consumed - loader.source.global_batch)
        self.state[Optimizer].zero_grad(set_to_none=True)
        reshard(self.state[nn.Module])
        self.stopping.report_undone(f"step {step}")

    def pending_evaluations(self) -> Sequence[ops.Evaluate | ops.JudgeEvaluations]:
        left = set((self.state.get(Evaluations) or Evaluations()).postponed)
        if not left:
            return ()
        judges = [op for op in self.run.graph.step if isinstance(op, ops.JudgeEvaluations)]
        # A part that is done is not in the checkpoint, and the mean needs it.
        left.update(*(op.labels for op in judges if left & {*op.labels}))
        evaluations = (op for op in self.run.graph.step if isinstance(op, ops.Evaluate))
        return [*(op for op in evaluations if op.label in left), *judges]

    def describe_rank(self) -> str:
        rank = self.run.launch.rank
        places = coordinates(self.run.graph, rank=rank)
        where = f" ({', '.join(places)})" if places else ""
        return f"rank {rank}{where}"

    def failed(self, message: str, *, code: ExitCode) -> str | None:
        if code is ExitCode.NUMERICS:
            # All ranks are alive, and the step being saved is before the one that went wrong.
            finish_save(self.run, self.stopping, self.state[Checkpoints])
        # A broken device must not hide why the run ends.
        with contextlib.suppress(RuntimeError):
            if self.instruments.line is not None and self.instruments.line.most.is_there():
                self.instruments.write_line()
        if self.instruments.rank_log is not None:
            self.instruments.rank_log.write("failed", message=message, exit_code=int(code))
        watch = self.run.watch
        if watch is None:
            return None
        if code is ExitCode.COMMUNICATION:
            return watch.cut_off()
        watch.failed(message)
        return None

    def ended(self, *, step: int) -> None:
        """The run has ended well: all that reads it learns it."""
        for readers in (self.state.get(Readers), self.instruments.readers):
            if readers is not None:
                readers.ended(step=step)

    def close(self, *, is_done: bool) -> None:
        """Close logs and trackers."""
        close_log(self.run, self.instruments, is_done=is_done)


def shares_of_ranks(run: Run, mesh: Mesh, model: nn.Module, pipeline: Pipeline) -> tuple[float, ...]:
    """Each rank's layers, its head counted in layers of as many parameters."""
    head = _head_in_layers(run, model, pipeline)
    by_place = [
        sum(_layers(pipeline, stage) + head * pipeline.is_last(stage) for stage in stages)
        for stages in (
            range(place, pipeline.num_stages, pipeline.num_ranks) for place in range(pipeline.num_ranks)
        )
    ]
    columns = mesh.columns(MeshDim.PP)
    places = {rank: place for column in columns for place, rank in enumerate(column)}
    return tuple(by_place[places[rank]] for rank in range(run.launch.world_size))


def _layers(pipeline: Pipeline, stage: int) -> int:
    return sum(name.startswith(f"{pipeline.op.blocks}.") for name in pipeline.op.stages[stage])


def _head_in_layers(run: Run, model: nn.Module, pipeline: Pipeline) -> float:
    """The head's parameters relative to those of this rank's mean layer."""
    own = [name for stage in pipeline.own for name in pipeline.op.stages[stage]]
    layers = [model.get_submodule(name) for name in own if name.startswith(f"{pipeline.op.blocks}.")]
    *_, hidden = pipeline.op.shape
    return (
        run.num_logits
        * hidden
        / mean(sum(weight.numel() for weight in layer.parameters()) for layer in layers)
    )
