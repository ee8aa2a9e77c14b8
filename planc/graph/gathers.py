"""When units of FSDP are gathered and freed in a pipeline's step: in which actions of their rank's order.

FSDP2 gathers a unit in each forward and backward of its modules, unless it is gathered already. It frees it
after a forward if it is to reshard it, and at the end of each backward with all others of the rank, those
of its other stages; or only at the end of its own stage's last backward
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from planc.pipelining.orders import Action, Direction, Order
from planc.record import record


@record
class Stay:
    """A unit is gathered from within `first` on, and freed within `last`, or at its end."""

    first: Action
    last: Action


@record
class StageUnit:
    """Modules of one stage whose parameters are gathered together."""

    modules: tuple[str, ...]
    stage: int
    reshard_after_forward: bool
    reshard_after_backward: bool

    def stays(self, order: Order) -> tuple[Stay, ...]:
        """The unit's stays in a step of its rank, in order."""
        stays: list[Stay] = []
        first: Action | None = None
        own = [action for action in order if action.stage == self.stage]
        last = next((action for action in reversed(own) if action.direction is Direction.BACKWARD), None)
        for action in order:
            is_own = action.stage == self.stage and action.direction is not Direction.WEIGHTS
            if is_own and first is None:
                first = action
            is_backward = action.direction is Direction.BACKWARD
            frees = is_backward and (self.reshard_after_backward or action == last)
            if first is not None and (frees or (is_own and self.reshard_after_forward)):
                stays.append(Stay(first, action))
                first = None
        if first is not None:
            stays.append(Stay(first, order[-1]))
        return tuple(stays)


def stage_holding(modules: Sequence[str], stages: Sequence[Sequence[str]]) -> int | None:
    """The stage that has a unit's modules; None for the root, which belongs to none."""
    inside = f"{modules[0]}."
    within = (inside.startswith(tuple(f"{name}." for name in names)) for names in stages)
    return next((stage for stage, is_within in enumerate(within) if is_within), None)
