"""A step whose numbers are wrong: the error that ends the run, with what every rank found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from planc.graph.ops import GuardStep, LoadWeights
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.numerics import (
    MAX_NAMED,
    Gradient,
    MicroBatch,
    Outputs,
    Statement,
    describe,
    first_outputs,
    number,
    statement,
)
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.session import Session
from planc.source import Span

_UNCHANGED = "no weight was changed"


def require_finite(
    session: Session, position: Position, *, name: str, value: float, span: Span | None
) -> None:
    """RunError with the numerics code on every rank if the step's loss or gradient norm is NaN or inf.

    The step would corrupt every weight. If the plan has a guard, the guard decides instead.
    `span` is that of the op that computed the value.
    """
    if not math.isfinite(value) and guard_of(session) is None:
        error = failure(session, position, what=f"the {name} is {value}", statements=nonfinite(session))
        error.span = span
        raise error


def guard_of(session: Session) -> GuardStep | None:
    return next((op for op in session.graph.step if isinstance(op, GuardStep)), None)


def failure(session: Session, position: Position, *, what: str, statements: Statement) -> RunError:
    """The error that ends the run, with what every rank found, for the user and for status.json."""
    found = all_statements(session, statements, topic=f"stop/{position.step}")
    text = describe(found)
    record = {
        "step": position.step,
        "gradient_norm": number(session.grad_norm),
        "ranks": [{"rank": one.rank, **one.data()} for one in found if not one.is_empty],
    }
    has_spoiled_weights = any(one.weights for one in found)
    return RunError(
        f"{what} at step {position.step}, and {_UNCHANGED}{': ' if text else ''}{text}",
        code=ExitCode.NUMERICS,
        help=_help_for_weights(session) if has_spoiled_weights else _help_for_numbers(found),
        record={"numerics": record},
    )


def _help_for_numbers(found: Sequence[Statement]) -> str:
    """Sequences are named only by a loss; other ranks' numbers need not come from them."""
    if outputs := first_outputs(found):
        rank = outputs[0][0].rank
        return (
            f"lower the learning rate, or let `guard` skip such steps; if it happens again in the same place "
            f"with other sequences, suspect the device of rank {rank}"
        )
    what = "inspect these sequences, " if any(one.micro_batches for one in found) else ""
    return f"{what}lower the learning rate, or let `guard` skip such steps"


def _help_for_weights(session: Session) -> str:
    """A run that neither saved nor resumed has no checkpoint to resume from."""
    if session.saved_step is not None:
        return "resume from the previous checkpoint; if it happens again, suspect that rank's memory"
    load = next((op for op in session.graph.setup if isinstance(op, LoadWeights)), None)
    origin = f"check that the weights in {load.path}" if load else "check that the initial weights"
    return f"{origin} are finite: there is no earlier checkpoint; if they are, suspect that rank's memory"


def all_statements(session: Session, own: Statement, *, topic: str) -> list[Statement]:
    if session.guard.statements is None:
        return [own]
    gathered = session.guard.statements.gather(topic, own.data())
    return [statement(rank, data) for rank, data in gathered]


def nonfinite(session: Session) -> Statement:
    """This rank's micro-batches and weights with NaN or inf, and where outputs or gradients became so."""
    batches = (one for one in _micro_batches(session) if not math.isfinite(one.loss))
    weights = (name for name, local in _local_weights(session).items() if not local.isfinite().all())
    return Statement(
        session.launch.rank,
        tuple(batches),
        tuple(weights)[:MAX_NAMED],
        tuple(_outputs(session))[:MAX_NAMED],
        _last_gradient(session) if math.isfinite(session.mean_loss) else None,
        str(session.device),
    )


def _outputs(session: Session) -> Iterator[Outputs]:
    pipeline = session.pipeline
    if pipeline is None or pipeline.outputs is None:
        return
    for stage, place, module, micro_step in pipeline.outputs.first_nonfinite():
        sequences = tuple(map(int, session.batch[micro_step].sample_ids))
        yield Outputs(stage, place, module, micro_step, sequences)


def _last_gradient(session: Session) -> Gradient | None:
    for place, (name, weight) in reversed([*enumerate(session.parameters.items())]):
        if weight.grad is not None and not local_of(weight.grad).isfinite().all():
            stage = session.pipeline.stage_of(name) if session.pipeline is not None else 0
            return Gradient(stage or 0, place, name)
    return None


def highest(session: Session) -> Statement:
    """This rank's micro-batch with the highest loss."""
    found = sorted(_micro_batches(session), key=lambda one: one.loss)
    return Statement(session.launch.rank, tuple(found[-1:]))


def _micro_batches(session: Session) -> Iterator[MicroBatch]:
    """None on ranks without the last stage of a pipeline, which alone has losses."""
    losses = session.guard.micro_losses
    batches = session.batch if losses else ()
    for micro_step, (loss, batch) in enumerate(zip(losses, batches, strict=True)):
        yield MicroBatch(micro_step, loss.item(), tuple(map(int, batch.sample_ids)))


def _local_weights(session: Session) -> Mapping[str, Tensor]:
    return {name: local_of(one).detach() for name, one in session.model.named_parameters()}
