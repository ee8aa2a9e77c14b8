"""The dropouts of a model in training, by runs on the meta device. Imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from planc.inventory.probe.forwards import NUM_TOKENS, run_again
from planc.inventory.probe.source_tracker import SourceTracker
from planc.inventory.schema import Draw
from planc.modeling.private import TorchDispatchMode
from planc.record import record
from planc.vocab import DropoutDim, parent_of

_SIZES = ((3, 7), (3, 11), (5, 7))
"""Batch and sequence of three runs: a dimension's lengths show which of them it has."""
_LENGTHS: Mapping[tuple[int, ...], DropoutDim] = {
    tuple(batch for batch, _ in _SIZES): DropoutDim.BATCH,
    tuple(sequence for _, sequence in _SIZES): DropoutDim.SEQUENCE,
    tuple(batch * sequence for batch, sequence in _SIZES): DropoutDim.TOKENS,
}


@record
class Call:
    """One call of `functional.dropout`, by the innermost module that runs, and the one that runs it."""

    fqn: str
    caller: str
    probability: float
    shape: tuple[int, ...]
    sources: frozenset[str]


@dataclass(slots=True)
class Training:
    """One forward's draws in training: its calls of `functional.dropout`, and the number of others."""

    calls: list[Call] = field(default_factory=list)
    num_others: int = 0
    visits: Counter[str] = field(default_factory=Counter)
    """The number of times that each module ran."""

    @property
    def is_random(self) -> bool:
        return self.num_others > 0 or any(call.probability > 0 for call in self.calls)


def training_of(
    model: PreTrainedModel, *, recorded: Collection[str] = (), size: tuple[int, int] = (1, NUM_TOKENS)
) -> Training:
    """One forward in training. Sources are among the `recorded` modules; the model is left in evaluation."""
    training, tracker = Training(), SourceTracker()
    inputs = {"input_ids": torch.zeros(size, dtype=torch.long, device="meta")}
    model.train()
    with ExitStack() as stack:
        stack.callback(model.train, False)
        running = stack.enter_context(_running(model, training.visits))
        for fqn in recorded:
            handle = model.get_submodule(fqn).register_forward_hook(partial(_mark, tracker, fqn))
            stack.callback(handle.remove)
        stack.enter_context(tracker)
        stack.enter_context(_Calls(training, running, tracker))
        stack.enter_context(_Others(training))
        run_again(model, inputs)
    return training


def draws_of(model: PreTrainedModel, *, recorded: Collection[str] = ()) -> dict[str, tuple[Draw, ...]]:
    """Each module's dropouts, in the order of one forward.

    A draw has no dims where planc can't tell an element's place in them: its lengths are neither fixed nor
    those of tokens, or the module runs more than once and not only in its parent's code.
    """
    first, *others = (training_of(model, recorded=recorded, size=size) for size in _SIZES)
    order = {fqn: index for index, (fqn, _) in enumerate(model.named_modules())}
    draws_by_fqn: dict[str, list[Draw]] = {}
    for index, call in enumerate(first.calls):
        if call.probability == 0:
            continue
        same_call = [call, *(one.calls[index] for one in others if index < len(one.calls))]
        is_same = len(same_call) == len(_SIZES) and len({one.fqn for one in same_call}) == 1
        is_placed = is_same and _runs_in_order(call, first.visits, model)
        dims = _dims([one.shape for one in same_call]) if is_placed else ()
        sources = tuple(sorted(call.sources, key=order.__getitem__))
        draws_by_fqn.setdefault(call.fqn, []).append(Draw(call.probability, dims, sources))
    return {fqn: tuple(draws) for fqn, draws in draws_by_fqn.items()}


def _runs_in_order(call: Call, visits: Counter[str], model: nn.Module) -> bool:
    """Whether the number of a draw is known where its module runs again in backward.

    A module that runs once numbers its own; one of torch's that runs several times, its parent that runs it.
    """
    if visits[call.fqn] == 1:
        return True
    parent = parent_of(call.fqn)
    return type(model.get_submodule(call.fqn)) is nn.Dropout and call.caller == parent and visits[parent] == 1


def _dims(shapes: Sequence[tuple[int, ...]]) -> tuple[DropoutDim | int, ...]:
    """The dimensions of a tensor, from its shapes in all runs; none if one is unknown.

    Rows of features, or of scores, can be placed: the last dimension is one of them.
    """
    if len({len(shape) for shape in shapes}) > 1:
        return ()
    dims: list[DropoutDim | int] = []
    for lengths in zip(*shapes, strict=True):
        dim = lengths[0] if len(set(lengths)) == 1 else _LENGTHS.get(lengths)
        if dim is None:
            return ()
        dims.append(dim)
    is_row = bool(dims) and dims[-1] not in (DropoutDim.BATCH, DropoutDim.TOKENS)
    has_once = all(dims.count(dim) <= 1 for dim in (DropoutDim.BATCH, DropoutDim.TOKENS))
    return tuple(dims) if is_row and has_once else ()


def _mark(tracker: SourceTracker, fqn: str, module: nn.Module, args: Any, output: Any) -> None:
    tracker.mark(output, sources=frozenset((fqn,)))


@contextmanager
def _running(model: nn.Module, visits: Counter[str]) -> Iterator[list[str]]:
    """The modules that run, outermost first; counts how often each does."""
    running: list[str] = []
    with ExitStack() as stack:

        def enter(fqn: str, *_: Any) -> None:
            running.append(fqn)
            visits[fqn] += 1

        def leave(*_: Any) -> None:
            running.pop()

        for fqn, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(enter, fqn)).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield running


class _Calls(TorchFunctionMode):
    """Records calls of `functional.dropout`, and returns what they take."""

    def __init__(self, found: Training, running: list[str], tracker: SourceTracker) -> None:
        super().__init__()
        self._found, self._running, self._tracker = found, running, tracker

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        return self._record(*args, **(kwargs or {}))

    def _record(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        # Callers of the form in place may not use what it returns.
        self._found.num_others += inplace and training and p > 0
        sources = self._tracker.sources(input)
        caller, fqn = ("", *self._running)[-2:]
        probability = float(p) if training else 0.0
        self._found.calls.append(Call(fqn, caller, probability, tuple(input.shape), sources))
        return input.clone()


class _Others(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts ops that take their values from a generator."""

    def __init__(self, found: Training) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._found.num_others += torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
