"""Skip a step whose loss or gradient is wrong, or end the run, before any weight has changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import GuardStep, LoadWeights
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Level
from planc.runtime.numerics import MAX_NAMED, MicroBatch, Statement, describe, number, statement
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.session import Session

_SOUND, _SPIKE, _NONFINITE = range(3)
_UNCHANGED = "no weight was changed"


def require_finite(session: Session, position: Position, *, name: str, value: float) -> None:
    """RunError with the numerics code on every rank if the step's loss or gradient norm is NaN or inf.

    The step would corrupt every weight. If the plan has a guard, the guard decides instead.
    """
    if not math.isfinite(value) and _guard(session) is None:
        raise _failure(session, position, what=f"the {name} is {value}", statements=_nonfinite(session))


def guard_step(session: Session, op: GuardStep, position: Position) -> None:
    """Decide on the step, the same on every rank: take it, skip it, or end the run with a RunError.

    A step without labels is skipped already, and its loss does not predict the next one's.
    """
    assert session.step_loss is not None
    if session.batch_tokens == 0:
        return
    state, spike = session.guard, op.loss_spike
    loss = session.step_loss.item()
    state.is_skipped = False
    level: Level | None = None
    verdict = _SOUND
    if not (math.isfinite(loss) and math.isfinite(session.grad_norm)):
        verdict = _NONFINITE
    elif spike is not None:
        level = state.memory.spike(loss, deviations=spike.deviations, window=spike.window)
        verdict = _SOUND if level is None else _SPIKE
    verdict = int(agree_on_worst(session, op, torch.tensor(verdict, device=session.device)).item())
    if verdict == _SOUND:
        state.memory = state.memory.taken(loss, window=spike.window if spike else 0)
        return
    if verdict == _NONFINITE:
        at_most, statements = op.nonfinite.at_most, _nonfinite(session)
        what = f"the loss is {loss:.6g} and the gradient norm {session.grad_norm:.6g}"
    else:
        assert spike is not None
        at_most, statements = spike.at_most, _highest(session)
        what = f"the loss of {loss:.6g} is a spike{_over(loss, level)}"
    if at_most is None or state.memory.num_skipped >= at_most:
        if at_most is not None:
            what += f" after {_skips(state.memory.num_skipped)}"
        raise _failure(session, position, what=what, statements=statements)
    _skip(session, position, what=what, own=statements)


def _guard(session: Session) -> GuardStep | None:
    return next((op for op in session.graph.step if isinstance(op, GuardStep)), None)


def agree_on_worst(session: Session, op: GuardStep, verdict: Tensor) -> Tensor:
    """The worst verdict of the ranks that each have the whole loss: rounding must not make them differ."""
    for mesh_dim in op.over:
        dist.all_reduce(verdict, op=dist.ReduceOp.MAX, group=session.submesh(mesh_dim).get_group())
    return verdict


def _over(loss: float, level: Level | None) -> str:
    if level is None:
        return " on another rank that computes it"
    return f": {level.deviations(loss):.1f} deviations of {level.deviation:.3g} above {level.median:.6g}"


def _skips(number: int) -> str:
    return "1 skipped step" if number == 1 else f"{number} skipped steps in a row"


def _skip(session: Session, position: Position, *, what: str, own: Statement) -> None:
    """Keep the weights as they are, and report which sequences are skipped."""
    state = session.guard
    state.is_skipped, state.memory = True, state.memory.skipped()
    found = describe(_all(session, own, topic=f"skip/{position.step}"))
    session.observer.noted(f"step {position.step} is skipped: {what}{'; ' if found else ''}{found}")


def _failure(session: Session, position: Position, *, what: str, statements: Statement) -> RunError:
    """The error that ends the run, with what every rank found, for the user and for status.json."""
    found = _all(session, statements, topic=f"stop/{position.step}")
    text = describe(found)
    record = {
        "step": position.step,
        "gradient_norm": number(session.grad_norm),
        "ranks": [{"rank": one.rank, **one.data()} for one in found if one.micro_batches or one.weights],
    }
    has_spoiled_weights = any(one.weights for one in found)
    return RunError(
        f"{what} at step {position.step}, and {_UNCHANGED}{': ' if text else ''}{text}",
        code=ExitCode.NUMERICS,
        help=_help_for_weights(session)
        if has_spoiled_weights
        else "inspect these sequences, lower the learning rate, or let `guard` skip such steps",
        record={"numerics": record},
    )


def _help_for_weights(session: Session) -> str:
    """A run that neither saved nor resumed has no checkpoint to resume from."""
    if session.saved_step is not None:
        return "resume from the previous checkpoint; if it happens again, suspect that rank's memory"
    load = next((op for op in session.graph.setup if isinstance(op, LoadWeights)), None)
    origin = f"check that the weights in {load.path}" if load else "check that the initial weights"
    return f"{origin} are finite: there is no earlier checkpoint; if they are, suspect that rank's memory"


def _all(session: Session, own: Statement, *, topic: str) -> list[Statement]:
    if session.guard.statements is None:
        return [own]
    gathered = session.guard.statements.gather(topic, own.data())
    return [statement(rank, data) for rank, data in gathered]


def _nonfinite(session: Session) -> Statement:
    """This rank's micro-batches and weights with NaN or inf."""
    batches = (one for one in _micro_batches(session) if not math.isfinite(one.loss))
    weights = (name for name, local in _local_weights(session).items() if not local.isfinite().all())
    return Statement(session.launch.rank, tuple(batches), tuple(weights)[:MAX_NAMED])


def _highest(session: Session) -> Statement:
    """This rank's micro-batch with the highest loss."""
    highest = max(_micro_batches(session), key=lambda one: one.loss)
    return Statement(session.launch.rank, (highest,), ())


def _micro_batches(session: Session) -> Iterator[MicroBatch]:
    for micro_step, (loss, batch) in enumerate(zip(session.guard.micro_losses, session.batch, strict=True)):
        yield MicroBatch(micro_step, loss.item(), tuple(map(int, batch.sample_ids)))


def _local_weights(session: Session) -> Mapping[str, Tensor]:
    return {name: local_of(one).detach() for name, one in session.model.named_parameters()}
