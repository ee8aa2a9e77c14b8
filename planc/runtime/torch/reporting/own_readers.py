"""The plan's own metrics and callbacks as ops: loaded and tried, then called at their points of a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from planc.extend.reference import OwnCallback, OwnMetric
from planc.graph import ops
from planc.graph.graph import Graph
from planc.runtime.callbacks import Callback, Metric
from planc.runtime.checkpoint_format.manifest import StopRequest
from planc.runtime.errors import RunError
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.interpreter import Position
from planc.runtime.torch import private
from planc.runtime.torch.agreement.agree import agreed, gather
from planc.runtime.torch.checkpoint.ops import callbacks_digest
from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages
from planc.runtime.torch.extensions.trials import result_and_note, show
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.reporting.given_tensors import Outline, WholeTensors
from planc.runtime.torch.reporting.metrics import figures_of
from planc.runtime.torch.reporting.reader_trials import Setting, try_callback, try_metric
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import (
    ClippedGradients,
    Evaluations,
    History,
    Schedule,
    Update,
    Verdict,
    Weights,
)

MAX_REASON = 300
"""Characters of a reason that checkpoints and status.json hold."""


def load_readers(run: Run, op: ops.LoadReaders, weights: Weights, pipeline: Pipeline | None) -> Readers:
    # Stages exchange their outlines; a rehearsal has only some of the layers of one.
    if run.is_rehearsal:
        tensors = None
        outline = {**run.whole_outline, **outline_of_all_stages(weights.parameters, stages=None)}
    else:
        tensors = WholeTensors(run, weights, pipeline)
        outline = {**tensors.outline}
    device = torch.device("cpu") if run.is_rehearsal else run.weights_device
    setting = setting_of(run.graph, outline, device=device, rank=run.launch.rank)
    # A rehearsal's tensors have no values, and those of a trial need theirs.
    with private.without_modes():
        readers = _tried(run, op, setting)
    readers.tensors = tensors
    if not run.is_rehearsal:
        run.observer.observers.append(readers)
    return readers


@agreed
def _tried(run: Run, op: ops.LoadReaders, setting: Setting) -> Readers:
    """The readers of this rank, each of which has passed its trial."""
    tried = [trial() for trial in trials(op, setting, base=run.paths.base, is_allowed=run.runs_extensions)]
    for result in tried:
        show(run, result.note)
    for own in op.callbacks:
        if "on_evaluation" in own.points and not setting.labels:
            text = f"callback {own.extension.entry}: on_evaluation is never called, as the plan has no `eval`"
            run.observer.noted(text)
    made = [result.made for result in tried]
    return Readers(
        run,
        tuple(reader for reader in made if isinstance(reader, Callback)),
        tuple(reader for reader in made if isinstance(reader, Metric)),
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A metric or a callback that has passed its trial, and a line on what the trial showed."""

    made: Metric | Callback
    note: str


def setting_of(graph: Graph, outline: Outline, *, device: torch.device, rank: int) -> Setting:
    """The setting of a rank's trials."""
    return Setting(
        outline=outline,
        frozen=frozenset(graph.frozen),
        device=device,
        plan=graph.name,
        mesh=tuple((mesh_dim.value, size) for mesh_dim, size in graph.mesh),
        world_size=graph.world_size,
        rank=rank,
        labels=tuple(op.label for op in graph.step if isinstance(op, ops.Evaluate)),
    )


def trials(
    op: ops.LoadReaders, setting: Setting, *, base: Path, is_allowed: bool
) -> Iterator[Callable[[], Tried]]:
    """A trial for each metric, and for each callback that this rank calls. RunError if one fails."""
    load = partial(load_extension, base=base, is_allowed=is_allowed)

    def of_metric(own: OwnMetric) -> Tried:
        trial = partial(try_metric, metric_maker(own, load(own.extension)), setting)
        return Tried(*result_and_note(own.extension, trial))

    def of_callback(own: OwnCallback) -> Tried:
        trial = partial(try_callback, callback_maker(own, load(own.extension)), setting)
        return Tried(*result_and_note(own.extension, trial))

    yield from (partial(of_metric, own) for own in op.metrics)
    # The code of a callback could write files, which other ranks must not.
    yield from (partial(of_callback, own) for own in op.callbacks if own.ranks == "all" or setting.rank == 0)


def callback_maker(own: OwnCallback, target: Callable[..., Any]) -> Callable[[], Callback]:
    """A function that makes an instance of the plan's class, which becomes a subclass of Callback."""
    assert isinstance(target, type), "the syntax of the file shows a class"
    kind = type(own.extension.entry, (target, Callback), {"ranks": own.ranks})
    for point in (name for name in dir(Callback) if name.startswith("on_")):
        if point not in own.points and getattr(kind, point) is not getattr(Callback, point):
            raise RunError(
                f"the callback `{own.extension.entry}` of {own.extension.file} inherits {point}, which would "
                "not be called",
                help=f"define {point} in the class that is decorated: a plan reads its points there",
            )
    return partial(kind, **arguments_of(own.extension))


def metric_maker(own: OwnMetric, target: Callable[..., Any]) -> Callable[[], Metric]:
    """A function that makes the metric: with a class, a new instance of it."""
    arguments, name = arguments_of(own.extension), own.extension.entry
    if isinstance(target, type):
        return lambda: Metric(name, target(**arguments), own.reduce)
    return lambda: Metric(name, partial(target, **arguments), own.reduce)


def read_gradients(
    run: Run,
    op: ops.ReadGradients,
    at: Position,
    weights: Weights,
    gradients: ClippedGradients,
    verdict: Verdict,
    schedule: Schedule,
    readers: Readers,
    pipeline: Pipeline | None,
) -> None:
    assert gradients.weights is not None, "they are the parameters' own"
    readers.before_update(figures_of(run, verdict, schedule, step=at.step), weights, pipeline)


def read_step(
    run: Run, op: ops.ReadStep, update: Update, verdict: Verdict, schedule: Schedule, readers: Readers
) -> None:
    readers.after_update(figures_of(run, verdict, schedule, step=update.step))


def read_evaluations(
    run: Run,
    op: ops.ReadEvaluations,
    update: Update,
    evaluations: Evaluations,
    verdict: Verdict,
    schedule: Schedule,
    readers: Readers,
) -> None:
    if evaluations.done:
        figures = figures_of(run, verdict, schedule, step=update.step)
        readers.after_evaluations(figures, evaluations.done)


def agree_to_stop(run: Run, op: ops.AgreeToStop, mesh: Mesh, readers: Readers, history: History) -> History:
    """Note the request of the lowest rank that has one: the run ends after this step."""
    own = list(readers.request or ())
    asked = torch.tensor(float(bool(own)), device=run.device)
    if not mesh.sum_over(asked, op.over).item():
        return history
    name, reason = next(filter(None, map(json.loads, gather(json.dumps(own)))))
    text = f"{name}: {reason}"[:MAX_REASON]
    return replace(history, stop=StopRequest(callbacks=callbacks_digest(run.graph), reason=text))
