"""A step whose numbers are wrong: it is skipped or ends the run, before any weight has changed.

The error has what every rank found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import GuardStep, LoadWeights
from planc.runtime import numerics
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Level, Memory
from planc.runtime.numerics import describe
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, ClippedGradients, History, Metrics, Norm, TokenCount, Verdict
from planc.runtime.torch.training.step_loss import StepLoss
from planc.runtime.torch.training.step_read import read_step
from planc.source import Span

_UNCHANGED = "no weight was changed"


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """The results of a step whose numbers are about to be read."""

    run: Run
    at: Position
    stopping: Stopping
    mesh: Mesh
    batch: Batch
    tokens: TokenCount
    step_loss: StepLoss
    norm: Norm
    gradients: ClippedGradients
    metrics: Metrics
    pipeline: Pipeline | None


def require_finite(
    step: JudgedStep, *, loss: float, gradient_norm: float, name: str, value: float, span: Span | None
) -> None:
    """RunError with the numerics code on every rank if the step's loss or gradient norm is NaN or inf.

    The step would corrupt every weight. If the plan has a guard, the guard decides instead.
    `span` is that of the op that computed the value.
    """
    if not math.isfinite(value) and guard_of(step.run) is None:
        statements = nonfinite(step, loss=loss)
        error = failure(
            step, what=f"the {name} is {value}", statements=statements, gradient_norm=gradient_norm
        )
        error.span = span
        raise error


def guard_of(run: Run) -> GuardStep | None:
    return next((op for op in run.graph.step if isinstance(op, GuardStep)), None)


def failure(step: JudgedStep, *, what: str, statements: numerics.Statement, gradient_norm: float) -> RunError:
    """The error that ends the run, with what every rank found, for the user and for status.json."""
    run, number_of_step = step.run, step.at.step
    of_ranks = all_statements(run, statements, topic=f"stop/{number_of_step}")
    text = numerics.describe(of_ranks)
    record = {
        "step": number_of_step,
        "gradient_norm": numerics.number(gradient_norm),
        "ranks": [{"rank": one.rank, **one.data()} for one in of_ranks if not one.is_empty],
    }
    has_spoiled_weights = any(one.weights for one in of_ranks)
    return RunError(
        f"{what} at step {number_of_step}, and {_UNCHANGED}{': ' if text else ''}{text}",
        code=ExitCode.NUMERICS,
        help=_help_for_weights(run) if has_spoiled_weights else _help_for_numbers(of_ranks),
        record={"numerics": record},
    )


def _help_for_numbers(statements: Sequence[numerics.Statement]) -> str:
    """Sequences are named only by a loss; other ranks' numbers need not come from them."""
    if outputs := numerics.first_outputs(statements):
        rank = outputs[0][0].rank
        return (
            f"lower the learning rate, or let `guard` skip such steps; if it happens again in the same place "
            f"with other sequences, suspect the device of rank {rank}"
        )
    what = "inspect these sequences, " if any(one.micro_batches for one in statements) else ""
    return f"{what}lower the learning rate, or let `guard` skip such steps"


def _help_for_weights(run: Run) -> str:
    """A run that neither saved nor resumed has no checkpoint to resume from."""
    if committed_steps(run.paths.checkpoints):
        return "resume from the previous checkpoint; if it happens again, suspect that rank's memory"
    load = next((op for op in run.graph.setup if isinstance(op, LoadWeights)), None)
    origin = f"check that the weights in {load.path}" if load else "check that the initial weights"
    return f"{origin} are finite: there is no earlier checkpoint; if they are, suspect that rank's memory"


def all_statements(run: Run, own: numerics.Statement, *, topic: str) -> list[numerics.Statement]:
    if run.statements is None:
        return [own]
    gathered = run.statements.gather(topic, own.data())
    return [numerics.statement(rank, data) for rank, data in gathered]


def nonfinite(step: JudgedStep, *, loss: float) -> numerics.Statement:
    """This rank's micro-batches and weights with NaN or inf, and where outputs or gradients became so."""
    batches = (one for one in _micro_batches(step) if not math.isfinite(one.loss))
    weights = (name for name, local in _local_weights(step).items() if not local.isfinite().all())
    return numerics.Statement(
        step.run.launch.rank,
        tuple(batches),
        tuple(weights)[: numerics.MAX_NAMED],
        tuple(_outputs(step))[: numerics.MAX_NAMED],
        _last_gradient(step) if math.isfinite(loss) else None,
        str(step.run.device),
    )


def _outputs(step: JudgedStep) -> Iterator[numerics.Outputs]:
    pipeline = step.pipeline
    if pipeline is None or pipeline.outputs is None:
        return
    for stage, place, module, micro_step in pipeline.outputs.first_nonfinite():
        sequences = tuple(map(int, step.batch.micro_batches[micro_step].sample_ids))
        yield numerics.Outputs(stage, place, module, micro_step, sequences)


def _last_gradient(step: JudgedStep) -> numerics.Gradient | None:
    pipeline = step.pipeline
    for place, (name, weight) in reversed([*enumerate(step.gradients.weights.parameters.items())]):
        if weight.grad is not None and not local_of(weight.grad).isfinite().all():
            stage = pipeline.stage_of(name) if pipeline is not None else 0
            return numerics.Gradient(stage or 0, place, name)
    return None


def highest(step: JudgedStep) -> numerics.Statement:
    """This rank's micro-batch with the highest loss."""
    found = sorted(_micro_batches(step), key=lambda one: one.loss)
    return numerics.Statement(step.run.launch.rank, tuple(found[-1:]))


def _micro_batches(step: JudgedStep) -> Iterator[numerics.MicroBatch]:
    """None on ranks without the last stage of a pipeline, which alone has losses."""
    losses = step.step_loss.by_micro_step
    batches = step.batch.micro_batches if losses else ()
    for micro_step, (loss, batch) in enumerate(zip(losses, batches, strict=True)):
        yield numerics.MicroBatch(micro_step, loss.item(), tuple(map(int, batch.sample_ids)))


def _local_weights(step: JudgedStep) -> Mapping[str, Tensor]:
    return {name: local_of(one).detach() for name, one in step.gradients.weights.parameters.items()}


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
