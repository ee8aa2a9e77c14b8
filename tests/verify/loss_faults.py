"""Bugs planted in losses of pairs, and in those with a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch, Logits
from planc.runtime.torch.training import preferences
from planc.runtime.torch.training.distillation import DistillationLoss
from planc.runtime.torch.training.loss_terms import token_losses
from planc.runtime.torch.training.preferences import PreferenceLoss
from planc.runtime.torch.training.step_loss import StepLoss


def reference_trained(state: State, op: Op, position: Position) -> None:
    """The reference has the weights of the step, as one does that is not a copy."""
    if isinstance(op, ops.ComputePairLoss) and position.step > 1:
        batch, loss = state[LocalBatch], state[OwnLoss]
        assert isinstance(loss, PreferenceLoss) and batch.sample_ids is not None
        logits, labels = state[Logits].values.detach(), batch.labels
        losses = token_losses(logits.flatten(0, 1), labels.flatten(), group=None, vocab_size=logits.shape[-1])
        loss.references[""][batch.sample_ids] = -losses.view(labels.shape).sum(1, dtype=torch.float64)


def answers_swapped_on_rank_1(state: State, op: Op, position: Position) -> None:
    """One rank takes the rejected answer of each pair for the chosen one, in its reference too."""
    if state[Run].launch.rank != 1:
        return
    if isinstance(op, ops.NextBatch) and position.step == 1:
        for answers in _references(state).values():
            answers.copy_(answers.view(-1, 2).flip(1).flatten())
    if isinstance(op, ops.Forward):
        batch = state[LocalBatch]
        swapped = {name: getattr(batch, name).unflatten(0, (-1, 2)).flip(1).flatten(0, 1) for name in _ROWS}
        state.put(replace(batch, **swapped))


_ROWS = ("input_ids", "labels", "position_ids")


def _references(state: State) -> Mapping[str, Tensor]:
    loss = state[OwnLoss]
    assert isinstance(loss, PreferenceLoss)
    return loss.references


def mean_over_own_pairs(state: State, op: Op, position: Position) -> None:
    """Each rank divides by the number of its own pairs."""
    if isinstance(op, ops.ShardContext) and position.micro_step == 0:
        pairs = state[StepLoss].pairs
        assert pairs is not None
        pairs.num_pairs //= state[Run].dp_size


def beta_forgotten(state: State, op: Op, position: Position) -> None:
    """The margin is the plain difference of log-probabilities, as if beta were 1."""
    if isinstance(op, ops.NextBatch) and position.step == 1:
        loss = state[OwnLoss]
        assert isinstance(loss, PreferenceLoss)
        state.put(replace(loss, beta=1.0))


def answers_of_own_parts(state: State, op: Op, position: Position) -> None:
    """Each rank of cp compares the parts of answers that it has with parts of the reference."""
    if isinstance(op, ops.ComputePairLoss | ops.ComputeReference):
        object.__setattr__(op, "over", ())


def ends_of_chunks_left_out(state: State, op: Op, position: Position) -> None:
    """The log-probabilities of answers have the first half of each chunk, in their reference too."""
    if isinstance(op, ops.ComputeReference):
        preferences.token_losses = _of_first_half


def _of_first_half(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    losses = token_losses(logits, labels, **settings)
    if not torch.is_grad_enabled():
        losses[len(losses) // 2 :] = 0
    return losses


def _with_teacher(state: State, op: Op, change: Callable[[Tensor], Tensor]) -> None:
    """Change the rows that the loss of a micro-batch reads."""
    batch = state.get(LocalBatch)
    if isinstance(op, ops.Forward) and batch is not None:
        state.put(replace(batch, **{name: change(getattr(batch, name)) for name in _OF_TEACHER}))


_OF_TEACHER = ("teacher_ids", "teacher_log_probabilities")


def teacher_shifted_by_one(state: State, op: Op, position: Position) -> None:
    """Each token has the teacher's rows of the token before it."""
    _with_teacher(state, op, lambda rows: rows.roll(1, dims=1))


def teacher_of_another_sequence(state: State, op: Op, position: Position) -> None:
    """Each sequence of a micro-batch has the teacher's rows of the one before it."""
    _with_teacher(state, op, lambda rows: rows.roll(1, dims=0))


def teacher_of_the_first_micro_batch(state: State, op: Op, position: Position) -> None:
    """Every micro-batch has the rows of the step's first one."""
    batch = state.get(LocalBatch)
    if isinstance(op, ops.Forward) and batch is not None:
        if position.micro_step == 0:
            _first[:] = [getattr(batch, name) for name in _OF_TEACHER]
        state.put(replace(batch, **dict(zip(_OF_TEACHER, _first, strict=True))))


_first: list[Tensor] = []


def teacher_of_the_first_part(state: State, op: Op, position: Position) -> None:
    """A rank of cp reads the rows of its tokens in the order of the sequence, not in that of its parts."""
    _with_teacher(state, op, lambda rows: rows.roll(rows.shape[1] // 2, dims=1))


def _of_kind(state: State, op: Op, kind: type[DistillationLoss]) -> None:
    """Let the loss be of another class."""
    if isinstance(op, ops.NextBatch):
        loss = state[OwnLoss]
        assert isinstance(loss, DistillationLoss)
        state.put(kind(**{one.name: getattr(loss, one.name) for one in fields(loss)}))


class _OfOneSize(DistillationLoss):
    def of_parts(self, *given: Any, **settings: Any) -> Tensor:
        alone, none = (
            DistillationLoss.of_parts(replace(self, weight=weight), *given, **settings)
            for weight in (1.0, 0.0)
        )
        return self.weight / self.temperature**2 * alone + (1 - self.weight) * none


def temperature_squared_left_out(state: State, op: Op, position: Position) -> None:
    """The divergence is not multiplied by the temperature's square."""
    _of_kind(state, op, _OfOneSize)


def kept_tokens_not_scaled(state: State, op: Op, position: Position) -> None:
    """The stored tokens keep the probabilities that they have in the teacher's whole vocabulary."""
    batch = state.get(LocalBatch)
    if isinstance(op, ops.Forward) and batch is not None:
        ids, kept = (getattr(batch, name) for name in _OF_TEACHER)
        # All others are one token, which no rank has logits of.
        others = (-kept.double().exp().sum(-1, keepdim=True)).log1p().float()
        state.put(
            replace(
                batch,
                teacher_ids=torch.cat([ids, torch.full_like(ids[..., :1], -1)], -1),
                teacher_log_probabilities=torch.cat([kept, others], -1),
            )
        )


class _FromEachStart(DistillationLoss):
    def of_parts(self, logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
        own, places = labels.unbind(-1)
        return super().of_parts(logits, torch.stack((own, places - places.min()), -1), **settings)


def teacher_by_place_in_chunk(state: State, op: Op, position: Position) -> None:
    """Tokens of each chunk have the rows of the first chunk's."""
    _of_kind(state, op, _FromEachStart)
