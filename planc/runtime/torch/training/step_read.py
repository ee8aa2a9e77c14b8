"""The sums of a step, and its one read: all that the host decides by, in one copy from the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from planc.graph.ops import ClipGradients, ReduceMetrics
from planc.runtime.interpreter import Position
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.parallel.gradients import measure_again, norm_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, ClippedGradients, Metrics, Norm, TokenCount, Verdict
from planc.runtime.torch.training.bad_steps import JudgedStep, guard_of, require_finite
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.step_loss import StepLoss


def reduce_metrics(
    run: Run,
    op: ReduceMetrics,
    at: Position,
    stopping: Stopping,
    mesh: Mesh,
    batch: Batch,
    tokens: TokenCount,
    step_loss: StepLoss,
    norm: Norm,
    gradients: ClippedGradients,
    pipeline: Pipeline | None,
    compiled: CompiledGraphs | None,
) -> tuple[Metrics, Verdict | None]:
    """Sum the loss over all ranks: each rank divides by the global token count, so the sum is the mean.

    A guard has a verdict to add to what is read from the device; without one, it is read here.
    """
    if compiled is not None:
        compiled.note(run, f"step {at.step}")
    metrics = summed(op, mesh, step_loss, own_request=stopping.own_request())
    if guard_of(run) is not None:
        return metrics, None
    step = JudgedStep(run, at, stopping, mesh, batch, tokens, step_loss, norm, gradients, metrics, pipeline)
    return metrics, read_step(step)[0]


def summed(op: ReduceMetrics, mesh: Mesh, step_loss: StepLoss, *, own_request: float) -> Metrics:
    """Sum the step's loss, and with it all requests to stop or to save: no extra collective, 8 more bytes.

    With them, the loss and the labels of each source of a mixture, and the means over pairs or classes. Over
    the mesh dims that share one loss, only the requests are summed.
    """
    own = torch.stack((step_loss.total, step_loss.total.new_full((), own_request)))
    if step_loss.by_source is not None:
        own = torch.cat((own, step_loss.by_source.sums.flatten()))
    num_of_sources = len(own) - 2
    if step_loss.means is not None:
        own = torch.cat((own, step_loss.means))
    found = mesh.sum_over(own, op.over)
    by_source, means = found[2 : 2 + num_of_sources], found[2 + num_of_sources :]
    return Metrics(found[0], mesh.sum_over(found[1], op.agree_over), by_source, means)


def read_step(step: JudgedStep, *, worst: Tensor | None = None) -> tuple[Verdict, int]:
    """Wait for the device, once in a step; return the step's numbers, and the worst verdict of a guard.

    RunError on every rank if the loss or the gradient norm is not finite and no guard decides about it.
    """
    run, metrics = step.run, step.metrics
    on_device = (metrics.loss, metrics.requests, step.tokens.labels, step.norm.squared, worst)
    numbers = torch.stack([one.double() for one in on_device if one is not None])
    values = torch.cat((numbers, metrics.by_source, metrics.means)).tolist()
    end = len(numbers) + len(metrics.by_source)
    by_source, means = tuple(values[len(numbers) : end]), tuple(values[end:])
    loss, requests, num_labels, squared, worst_verdict, *_ = (*values[: len(numbers)], 0)
    # Squares overflow float32 where values do not.
    norm = norm_of(squared)
    if not math.isfinite(squared):
        norm = measure_again(run, step.mesh, step.gradients, step.pipeline)
    if not num_labels:
        run.observer.noted_once(
            "no labels",
            f"step {step.at.step} has no labels and changes no weight; metrics.jsonl marks every such step",
        )
    spans = {type(op): op.span for op in run.graph.step}
    for name, value, kind in (("gradient norm", norm, ClipGradients), ("loss", loss, ReduceMetrics)):
        require_finite(step, loss=loss, gradient_norm=norm, name=name, value=value, span=spans[kind])
    step.stopping.take(requests, began=step.batch.began, num_micro_batches=len(step.batch.micro_batches))
    # A step without labels has no gradient. Neither decay nor momentum may move a weight for it.
    verdict = Verdict(
        loss, norm, int(num_labels), is_skipped=not num_labels, by_source=by_source, means=means
    )
    return verdict, int(worst_verdict) if worst is not None else 0
