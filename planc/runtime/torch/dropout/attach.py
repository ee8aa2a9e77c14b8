"""The dropout of a run: its modules, which draw masks by global position, and the step of every forward.

Names of modules do not change. A module gets a subclass of its own class. All layers share it, so
torch.compile takes one graph for them. A dropout's number in its module counts from 0 wherever the code that
runs it begins, also in a recomputation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from planc.graph.ops import AttachDropout, ShardContext
from planc.graph.sources import training_data
from planc.runtime.data.order import rank_positions
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import STALE
from planc.runtime.torch.attention.sharding import local_positions
from planc.runtime.torch.dropout.masking import AttachedDraw, Masking
from planc.runtime.torch.dropout.positions import ALONE
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.transfers import ranks_of
from planc.runtime.torch.run import Run
from planc.vocab import parent_of

_OWN, _REPEATED = "_planc_own_draws", "_planc_repeated_draws"


class _Calls:
    """The draws of one module in order, and how many have been made."""

    def __init__(self, fqn: str, draws: tuple[AttachedDraw, ...]) -> None:
        self._fqn, self._draws = fqn, draws
        self._number = 0

    def begin(self) -> None:
        self._number = 0

    def drop(self, value: Tensor, probability: float) -> Tensor:
        """The next draw; RunError if the plan has another."""
        number = self._number
        if number >= len(self._draws) or self._draws[number].draw.probability != probability:
            known = ", ".join(str(draw.draw.probability) for draw in self._draws)
            raise RunError(
                f"dropout {number} of `{self._fqn}` has probability {probability}; the plan has {known}",
                help=STALE,
            )
        self._number = number + 1 if len(self._draws) > 1 else 0
        return self._draws[number](value)


def _mask_calls(module: nn.Module, calls: _Calls) -> None:
    """Let the module's own calls of `functional.dropout` be these."""
    _replace_class(module)
    vars(module)[_OWN] = calls


def _mask_dropout(module: nn.Module, calls: _Calls, *, caller: nn.Module | None) -> None:
    """Let a module of torch's be these; `caller` is the one that runs it, if it does so several times."""
    module.__class__ = _masked_dropout()
    vars(module)[_OWN] = calls
    if caller is not None:
        _replace_class(caller)
        vars(caller)[_REPEATED] = (*getattr(caller, _REPEATED), calls)


def _replace_class(module: nn.Module) -> None:
    of_class: Any = type(module)
    if not hasattr(of_class, _REPEATED):
        module.__class__ = _with_masks(of_class)


@functools.cache
def _masked_dropout() -> type[nn.Module]:
    def forward(self: Any, input: Tensor) -> Tensor:
        dropped: Tensor = getattr(self, _OWN).drop(input, self.p) if self.training else input
        return dropped

    return _subclass(nn.Dropout, forward)


@functools.cache
def _with_masks(of_class: Any) -> type[nn.Module]:
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        for calls in getattr(self, _REPEATED):
            calls.begin()
        own = getattr(self, _OWN)
        if own is None or not self.training:
            return of_class.forward(self, *arguments, **keywords)
        own.begin()
        with _MaskedCalls(own):
            return of_class.forward(self, *arguments, **keywords)

    return _subclass(of_class, functools.wraps(of_class.forward)(forward))


def _subclass(of_class: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    names = {"__module__": of_class.__module__, "__qualname__": of_class.__qualname__}
    own = {"forward": forward, _OWN: None, _REPEATED: ()}
    made: type[nn.Module] = type(of_class.__name__, (of_class,), names | own)
    return made


class _MaskedCalls(TorchFunctionMode):
    """Makes draws of calls of `functional.dropout` that drop anything.

    A module inside that has draws of its own enters another mode, which is asked first.
    """

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        value, probability, is_training = _arguments_of(*args, **(kwargs or {}))
        return self._calls.drop(value, probability) if is_training and probability > 0 else value


def _arguments_of(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[Tensor, float, bool]:
    """The arguments of `functional.dropout`, by its own names."""
    return input, p, training


def attach_dropout(
    run: Run, op: AttachDropout, mesh: Mesh, model: nn.Module, masking: Masking | None
) -> Masking:
    """Let modules draw their masks by global position."""
    masking = masking or _masking(run)
    ranks = ranks_of(mesh.group(op.over[0])) if op.over else ALONE
    for fqn in op.modules:
        draws = tuple(
            AttachedDraw(draw, masking, ranks, (op.seed, fqn, number)) for number, draw in enumerate(op.draws)
        )
        masking.draws.extend(draws)
        module, calls = model.get_submodule(fqn), _Calls(fqn, draws)
        if type(module) is not nn.Dropout:
            _mask_calls(module, calls)
            continue
        if module.p != op.draws[0].probability:
            message = f"`{fqn}` has probability {module.p}, not {op.draws[0].probability}"
            raise RunError(message, help=STALE)
        parent = model.get_submodule(parent_of(fqn))
        _mask_dropout(module, calls, caller=parent if len(draws) > 1 else None)
    return masking


def begin_dropout(masking: Masking, run: Run, at: Position) -> None:
    """Tell every draw the step and the samples of the next forward in training."""
    data = training_data(run.graph)
    samples = rank_positions(
        0,
        global_batch=data.global_batch,
        micro_batch=data.micro_batch,
        dp_size=run.dp_size,
        dp_rank=run.dp_rank,
        micro_step=at.micro_step,
    )
    masking.begin(step=at.step, samples=samples)


def _masking(run: Run) -> Masking:
    """The positions in every sequence that this rank holds."""
    (context,) = (op for op in run.graph.ops() if isinstance(op, ShardContext))
    parts, index = 1, 0
    for mesh_dim in context.over:
        parts, index = run.graph.size(mesh_dim), run.coordinate(mesh_dim)
    balance: Any = context.balance
    length = training_data(run.graph).sequence_length
    positions = local_positions(length, parts=parts, index=index, balance=balance, device=run.device)
    return Masking(positions, length, has_queue=run.has_queue)
