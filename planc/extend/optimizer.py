"""Optimizers: the update of one parameter by its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

OPTIMIZER = Kind(
    "optimizer",
    "optimizer.kind",
    passes=("parameter", "gradient", "state"),
    offers=("step",),
    varies=("lr", "weight_decay"),
    needs=("lr",),
    options=("state",),
    reserved=("step",),
)
Update = TypeVar("Update", bound=Callable[..., Any])


def optimizer(name: str, *, state: tuple[str, ...] = ()) -> Callable[[Update], Update]:
    """Register an optimizer: `optimizer { kind = NAME(lr = 1e-4, argument = value) }`.

    An optimizer is a function that changes `parameter` in place by its `gradient`, both of one shape, without
    gradients. `state` has a tensor of that shape for each name of the decorator's `state`, zero at first, to
    change in place; checkpoints hold it, and nothing that is kept elsewhere. It takes `lr`, by name and
    without a default, which is the schedule's rate at the step, and may take `weight_decay`, which is that of
    the parameter's group. If it takes `step`, that is the number of the update, from 1. All other arguments
    get their values in the plan.

    Before the first step, planc tries that a part of a tensor gets the same update alone and in the whole,
    for vectors and matrices, and for small, ordinary and large gradients: then each rank updates its own
    part, on any mesh. An optimizer that looks at whole tensors is refused on a mesh that shards them.
    """
    return lambda target: mark(OPTIMIZER, target, name)
