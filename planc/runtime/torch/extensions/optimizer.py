"""An optimizer of the plan's own: tried for what it needs of a tensor, then called on what each rank holds.

One that updates each element by itself, and by nothing else, updates a rank's part of a tensor as it would
update that part of the whole. Any other needs whole tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from planc.extend.decorators import OPTIMIZER
from planc.graph.ops import BuildOptimizer
from planc.optimizers.optimizer import Kept
from planc.optimizers.own import OwnOptimizer as Settings
from planc.runtime.errors import RunError
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.torch import private
from planc.runtime.torch.extensions.trials import RefusedError, tried, with_place
from planc.runtime.torch.parallel.local_parts import ByParameter, kept_like, local_of
from planc.runtime.torch.run import Run

_SHAPE = (6, 8)
_NUM_STEPS = 3
_CUTS = (
    (slice(0, 2), slice(None)),
    (slice(2, None), slice(None)),
    (slice(None), slice(0, 3)),
    (slice(4, 5), slice(5, 6)),
)
"""Parts of the matrix of a trial: by rows, by columns, and a single element."""
_VECTOR_CUTS = ((slice(0, 2),), (slice(2, None),), (slice(5, 6),))
_SCALES = ((1.0, 1.0), (1e-2, 1e-3), (1.0, 1e3))
"""Scales of weights and gradients: an update may look at a norm only if it is small, or only if large."""
_TOLERANCE = 1e-5
"""Relative to the largest change: a kernel may compute the last elements of a tensor otherwise."""
_ROUNDINGS = 4
"""Roundings of a weight in the steps of a trial, which a small change can be as small as."""

Update = Callable[[Tensor, Tensor, dict[str, Tensor], float, float, int], object]
"""Updates a parameter by its gradient and state, with lr, weight decay and the number of the update."""


class OwnOptimizer(ByParameter):
    """Calls the plan's function on each parameter, or on this rank's part of it."""

    def __init__(
        self, groups: list[dict[str, Any]], settings: Settings, *, lr: float, update: Update
    ) -> None:
        super().__init__(groups, {"lr": lr, "torch_class": settings.torch_class, **settings.arguments})
        self.settings = settings
        self._update = update
        self._steps: dict[Tensor, int] = {}

    def update(self, parameter: Tensor, *, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        if not state:
            self._steps[parameter] = 0
            state["step"] = torch.zeros(())
            state.update({name: kept_like(parameter, Kept(name)) for name in self.settings.state})
        elif parameter not in self._steps:
            # What a checkpoint has filled.
            self._steps[parameter] = int(state["step"].item())
        self._steps[parameter] += 1
        state["step"] += 1
        own, gradient = local_of(parameter.detach()), parameter.grad
        assert gradient is not None, "the caller looked"
        kept = {name: local_of(state[name]) for name in self.settings.state}
        # A rank may hold nothing of a tensor with few rows.
        if own.numel():
            self._update(own, local_of(gradient), kept, lr, weight_decay, self._steps[parameter])


def own_optimizer(
    run: Run, op: BuildOptimizer, settings: Settings, groups: list[dict[str, Any]], names: Mapping[Any, str]
) -> Optimizer:
    """The optimizer, tried. RunError if it needs whole tensors, and ranks hold parts of one."""
    extension = settings.extension
    function = load_extension(extension, base=run.paths.base, is_allowed=run.runs_extensions)
    # A rehearsal's tensors have no values, and those of a trial need theirs.
    with private.without_modes(), torch.random.fork_rng():
        trial = partial(try_update, function, arguments_of(extension), settings.state)
        update, is_elementwise = tried(run, extension, trial)
    update = with_place(update, extension, span=op.span)
    if not _takes(function, "weight_decay") and any(group.weight_decay for group in op.groups):
        raise RunError(
            f"the optimizer `{extension.entry}` takes no `weight_decay`, and the plan sets one",
            help="add `weight_decay` to the function's keyword-only parameters, or remove it from the plan",
        )
    parts = _parts(parameter for group in groups for parameter in group["params"])
    if not is_elementwise and parts:
        raise RunError(
            f"the optimizer `{extension.entry}` of {extension.file} looks at whole tensors, and ranks hold "
            f"parts of `{names[parts[0]]}`: each would update its part by another rule",
            help="update each element by its own gradient and state, or shard no parameter that it trains",
        )
    return OwnOptimizer(groups, settings, lr=op.lr, update=update)


def _parts(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters of which ranks hold different parts."""
    sharded = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
    return [
        parameter
        for parameter in sharded
        if any(not placement.is_replicate() for placement in parameter.placements)
    ]


def _takes(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


def update_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Update:
    """The function with the plan's arguments, and with what else it takes of planc."""
    varied = [name for name in (*OPTIMIZER.varies, *OPTIMIZER.offers) if _takes(function, name)]

    def update(
        parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, decay: float, step: int
    ) -> object:
        values = {"lr": lr, "weight_decay": decay, "step": step}
        return function(parameter, gradient, state, **{name: values[name] for name in varied}, **arguments)

    return update


def try_update(
    function: Callable[..., Any], arguments: Mapping[str, Any], state: tuple[str, ...]
) -> tuple[tuple[Update, bool], tuple[str, ...]]:
    """The update and whether it is of each element by itself, and what was shown of it."""
    update = update_of(function, arguments)
    trial = _Trial(update, state)
    torch.manual_seed(0)
    whole = trial.trained()
    if not whole.isfinite().all():
        raise RefusedError(
            "makes weights NaN or inf, for ordinary gradients", "add a small number to each divisor"
        )
    if torch.equal(whole, trial.start):
        raise RefusedError(
            "leaves the parameter as it was", "change it in place, as by `parameter.sub_(lr * gradient)`"
        )
    torch.manual_seed(1)
    if not torch.equal(trial.trained(), whole):
        raise RefusedError(
            "gives another update for the same gradients",
            "compute it from the arguments and `state` alone: no random numbers, nothing kept elsewhere",
        )
    if not torch.equal(trial.trained(in_one_tensor=True), whole):
        raise RefusedError(
            "remembers something by the tensor that it is given",
            "keep it in `state`: each call gets another tensor object, and checkpoints hold `state` only",
        )
    is_elementwise = all(
        _is_elementwise(_Trial(update, state, shape=shape, weights=weights, gradients=gradients), cuts)
        for weights, gradients in _SCALES
        for shape, cuts in ((_SHAPE, _CUTS), (_SHAPE[1:], _VECTOR_CUTS))
    )
    shown = "each element by itself: any mesh can shard its tensors" if is_elementwise else "whole tensors"
    return (update, is_elementwise), (f"updates {shown}", "the same each time")


def _is_elementwise(trial: _Trial, cuts: Iterable[tuple[slice, ...]]) -> bool:
    """Whether each part of the tensor gets the same update alone as in the whole."""
    whole = trial.trained()
    rounding = _ROUNDINGS * torch.finfo(whole.dtype).eps * trial.start.abs().max()
    limit = torch.maximum(_TOLERANCE * (whole - trial.start).abs().max(), rounding)
    return all(((trial.trained(*cut) - whole[cut]).abs() <= limit).all() for cut in cuts)


class _Trial:
    """A tensor, with a gradient for each of some steps."""

    def __init__(
        self,
        update: Update,
        names: tuple[str, ...],
        *,
        shape: tuple[int, ...] = _SHAPE,
        weights: float = 1.0,
        gradients: float = 1.0,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.update = update
        self.names = names
        self.start = weights * torch.randn(shape, generator=generator)
        self.gradients = [gradients * torch.randn(shape, generator=generator) for _ in range(_NUM_STEPS)]

    def trained(self, *part: slice, in_one_tensor: bool = False) -> Tensor:
        """A part of the tensor after all steps, with nothing but that part in sight.

        As in a run, each call gets another tensor object with the same memory, unless `in_one_tensor`.
        """
        parameter = self.start[part].clone()
        # All are kept: an object may otherwise have the identity of an earlier one.
        objects = [parameter if in_one_tensor else parameter.detach() for _ in self.gradients]
        kept = {name: torch.zeros_like(parameter) for name in self.names}
        with torch.no_grad():
            for step, (given, gradient) in enumerate(zip(objects, self.gradients, strict=True), start=1):
                state = dict(kept)
                self.update(given, gradient[part].clone(), state, 1e-2, 0.1, step)
                if state.keys() != kept.keys() or any(state[name] is not kept[name] for name in kept):
                    raise RefusedError(
                        "replaces a tensor of `state`, or adds one",
                        "name all in the decorator's `state`, and change them: `state[name].copy_(...)`",
                    )
        return parameter
