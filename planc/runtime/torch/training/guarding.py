"""Skip a step whose loss or gradient is wrong, or end the run, before any weight has changed."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch import Tensor

from planc.graph.ops import GuardStep
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Level
from planc.runtime.numerics import Statement, describe
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.bad_steps import all_statements, failure, highest, nonfinite
from planc.runtime.torch.training.step_read import read_step

_SOUND, _SPIKE, _NONFINITE = range(3)


def guard_step(session: Session, op: GuardStep, position: Position) -> None:
    """Decide on the step, the same on every rank: take it, skip it, or end the run with a RunError.

    A step without labels is skipped already, and its loss does not predict the next one's.
    """
    verdict = read_step(session, position, verdict=agree_on_worst(session, op, _own_verdict(session, op)))
    if session.batch_tokens == 0:
        return
    state, spike, loss = session.guard, op.loss_spike, session.mean_loss
    state.is_skipped = False
    if not math.isfinite(session.grad_norm):
        verdict = _NONFINITE
    if verdict == _SOUND:
        state.memory = state.memory.taken(loss, window=spike.window if spike else 0)
        return
    if verdict == _NONFINITE:
        at_most, statements = op.nonfinite.at_most, nonfinite(session)
        what = f"the loss is {loss:.6g} and the gradient norm {session.grad_norm:.6g}"
    else:
        assert spike is not None
        at_most, statements = spike.at_most, highest(session)
        level = state.memory.spike(loss, deviations=spike.deviations, window=spike.window)
        what = f"the loss of {loss:.6g} is a spike{_over(loss, level)}"
    if at_most is None or state.memory.num_skipped >= at_most:
        if at_most is not None:
            what += f" after {_skips(state.memory.num_skipped)}"
        raise failure(session, position, what=what, statements=statements)
    _skip(session, position, what=what, own=statements)


def _own_verdict(session: Session, op: GuardStep) -> Tensor:
    """This rank's verdict on the loss, computed where the loss is: the host has not read it yet.

    It takes no account of the gradient norm, which is the same on every rank.
    """
    assert session.step_loss is not None
    loss, spike = session.step_loss, op.loss_spike
    is_nonfinite = ~loss.isfinite()
    verdict = is_nonfinite.long() * _NONFINITE
    if spike is not None and (level := session.guard.memory.level(window=spike.window)) is not None:
        is_spike = loss - level.median > spike.deviations * level.deviation
        verdict += (is_spike & ~is_nonfinite).long() * _SPIKE
    return verdict


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
    found = describe(all_statements(session, own, topic=f"skip/{position.step}"))
    session.observer.noted(f"step {position.step} is skipped: {what}{'; ' if found else ''}{found}")
