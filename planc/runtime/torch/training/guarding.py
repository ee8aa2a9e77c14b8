"""Skip a step whose loss or gradient is wrong, or end the run, before any weight has changed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import GuardStep
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Level, Memory
from planc.runtime.numerics import describe
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, ClippedGradients, History, Metrics, Norm, TokenCount, Verdict
from planc.runtime.torch.training.bad_steps import JudgedStep, all_statements, failure, highest, nonfinite
from planc.runtime.torch.training.step_loss import StepLoss
from planc.runtime.torch.training.step_read import read_step

_SOUND, _SPIKE, _NONFINITE = range(3)


def guard_step(
    run: Run,
    op: GuardStep,
    at: Position,
    stopping: Stopping,
    mesh: Mesh,
    batch: Batch,
    tokens: TokenCount,
    step_loss: StepLoss,
    norm: Norm,
    gradients: ClippedGradients,
    metrics: Metrics,
    history: History,
    pipeline: Pipeline | None,
) -> tuple[Verdict, History]:
    """Decide on the step, the same on every rank: take it, skip it, or end the run with a RunError.

    A step without labels is skipped already, and its loss does not predict the next one's.
    """
    step = JudgedStep(run, at, stopping, mesh, batch, tokens, step_loss, norm, gradients, metrics, pipeline)
    memory, spike = history.memory, op.loss_spike
    own = _own_verdict(metrics.loss, op, memory)
    verdict, worst = read_step(step, worst=agree_on_worst(mesh, op, own))
    if verdict.is_skipped:
        return verdict, history
    if not math.isfinite(verdict.gradient_norm):
        worst = _NONFINITE
    if worst == _SOUND:
        taken = memory.taken(verdict.loss, window=spike.window if spike else 0)
        return verdict, replace(history, memory=taken)
    if worst == _NONFINITE:
        at_most, statements = op.nonfinite.at_most, nonfinite(step, loss=verdict.loss)
        what = f"the loss is {verdict.loss:.6g} and the gradient norm {verdict.gradient_norm:.6g}"
    else:
        assert spike is not None
        at_most, statements = spike.at_most, highest(step)
        level = memory.spike(verdict.loss, deviations=spike.deviations, window=spike.window)
        what = f"the loss of {verdict.loss:.6g} is a spike{_over(verdict.loss, level)}"
    if at_most is None or memory.num_skipped >= at_most:
        if at_most is not None:
            what += f" after {_skips(memory.num_skipped)}"
        raise failure(step, what=what, statements=statements, gradient_norm=verdict.gradient_norm)
    # The weights stay as they are; the report names the sequences.
    found = describe(all_statements(run, statements, topic=f"skip/{at.step}"))
    run.observer.noted(f"step {at.step} is skipped: {what}{'; ' if found else ''}{found}")
    return replace(verdict, is_skipped=True), replace(history, memory=memory.skipped())


def _own_verdict(loss: Tensor, op: GuardStep, memory: Memory) -> Tensor:
    """This rank's verdict on the loss, computed where the loss is: the host has not read it yet.

    It takes no account of the gradient norm, which is the same on every rank.
    """
    spike = op.loss_spike
    is_nonfinite = ~loss.isfinite()
    verdict = is_nonfinite.long() * _NONFINITE
    if spike is not None and (level := memory.level(window=spike.window)) is not None:
        is_spike = loss - level.median > spike.deviations * level.deviation
        verdict += (is_spike & ~is_nonfinite).long() * _SPIKE
    return verdict


def agree_on_worst(mesh: Mesh, op: GuardStep, verdict: Tensor) -> Tensor:
    """The worst verdict of the ranks that each have the whole loss: rounding must not make them differ."""
    for mesh_dim in op.over:
        dist.all_reduce(verdict, op=dist.ReduceOp.MAX, group=mesh.group(mesh_dim))
    return verdict


def _over(loss: float, level: Level | None) -> str:
    if level is None:
        return " on another rank that computes it"
    return f": {level.deviations(loss):.1f} deviations of {level.deviation:.3g} above {level.median:.6g}"


def _skips(number: int) -> str:
    return "1 skipped step" if number == 1 else f"{number} skipped steps in a row"
