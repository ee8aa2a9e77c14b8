"""A step whose numbers are wrong: the error that ends the run, with what every rank found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from planc.graph.ops import GuardStep, LoadWeights
from planc.runtime import numerics
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, ClippedGradients, Metrics, Norm, TokenCount
from planc.runtime.torch.training.step_loss import StepLoss
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
