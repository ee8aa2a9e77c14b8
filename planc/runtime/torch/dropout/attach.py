"""Modules whose dropout draws masks by global position."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from planc.graph.ops import AttachDropout, OpenData, ShardContext
from planc.runtime.data.order import rank_positions
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.sharding import local_positions
from planc.runtime.torch.dropout.masking import AttachedDraw, Masking
from planc.runtime.torch.dropout.positions import ALONE
from planc.runtime.torch.parallel.transfers import ranks_of
from planc.runtime.torch.session import Session

_DRAWS = "_planc_draws"
STALE = "write the inventory again with this release of transformers: planc inventory DIR --save"


def attach_dropout(session: Session, op: AttachDropout, position: Position) -> None:
    """Let modules draw their masks here. Names of modules do not change."""
    if session.masking is None:
        session.masking = _masking(session)
    ranks = ranks_of(session.submesh(op.over[0]).get_group()) if op.over else ALONE
    for fqn in op.modules:
        module: Any = session.model.get_submodule(fqn)
        if type(module) is nn.Dropout and (len(op.draws) > 1 or op.draws[0].probability != module.p):
            raise RunError(f"`{fqn}` has probability {module.p}, not {op.draws[0].probability}", help=STALE)
        draws = tuple(
            AttachedDraw(draw, session.masking, ranks, (op.seed, fqn, number))
            for number, draw in enumerate(op.draws)
        )
        session.masking.draws.extend(draws)
        vars(module)[_DRAWS] = draws
        of_class: Any = type(module)
        module.__class__ = _masked_dropout() if of_class is nn.Dropout else _with_masks(of_class)


def begin_dropout(session: Session, position: Position) -> None:
    """Tell every draw the step and the samples of the next forward."""
    if session.masking is None or not session.model.training:
        return
    (data,) = (op for op in session.graph.setup if isinstance(op, OpenData))
    samples = rank_positions(
        0,
        global_batch=data.global_batch,
        micro_batch=data.micro_batch,
        dp_size=session.dp_size,
        dp_rank=session.dp_rank,
        micro_step=position.micro_step,
    )
    session.masking.begin(step=position.step, samples=samples)


def _masking(session: Session) -> Masking:
    (data,) = (op for op in session.graph.setup if isinstance(op, OpenData))
    (context,) = (op for op in session.graph.ops() if isinstance(op, ShardContext))
    parts, index = 1, 0
    for mesh_dim in context.over:
        parts, index = session.graph.size(mesh_dim), session.coordinate(mesh_dim)
    balance: Any = context.balance
    positions = local_positions(data.sequence_length, parts=parts, index=index, balance=balance)
    return Masking(positions.to(session.device), data.sequence_length)


@functools.cache
def _masked_dropout() -> type[nn.Module]:
    """nn.Dropout with a mask of its own. All layers share a class, so torch.compile takes one graph."""

    def forward(self: Any, input: Tensor) -> Tensor:
        (draw,) = vars(self)[_DRAWS]
        return draw(input) if self.training else input

    return _subclass(nn.Dropout, forward)


@functools.cache
def _with_masks(of_class: Any) -> type[nn.Module]:
    """A module's class whose own calls of `functional.dropout` use the masks of its draws."""

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not self.training:
            return of_class.forward(self, *arguments, **keywords)
        with _MaskedCalls(vars(self)[_DRAWS]):
            return of_class.forward(self, *arguments, **keywords)

    return _subclass(of_class, functools.wraps(of_class.forward)(forward))


def _subclass(of_class: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    names = {"__module__": of_class.__module__, "__qualname__": of_class.__qualname__}
    made: type[nn.Module] = type(of_class.__name__, (of_class,), {**names, "forward": forward})
    return made


class _MaskedCalls(TorchFunctionMode):
    """Numbers the calls of `functional.dropout` that drop anything, from 0 in every forward of a module.

    An inner module with draws has a mode of its own, which is asked first.
    """

    def __init__(self, draws: tuple[AttachedDraw, ...]) -> None:
        super().__init__()
        self._draws = draws
        self._number = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        value, probability, is_training = _arguments_of(*args, **(kwargs or {}))
        if not is_training or probability == 0.0:
            return value
        number, self._number = self._number, self._number + 1
        if number >= len(self._draws) or self._draws[number].draw.probability != probability:
            known = ", ".join(str(one.draw.probability) for one in self._draws)
            raise RunError(f"dropout {number} of a module has probability {probability}: {known}", help=STALE)
        return self._draws[number](value)


def _arguments_of(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[Tensor, float, bool]:
    """The arguments of `functional.dropout`, by its own names."""
    return input, p, training
