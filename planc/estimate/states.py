"""Parameters, gradients and optimizer state: exact, from the local shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from planc.estimate.layout import ParameterLayout
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Amount
from planc.optimizers.optimizer import STEP_BYTES
from planc.vocab import DType

ON_HOST = ", in host memory"


def num_local_parameters(work: RankWork) -> int:
    """Elements of rank 0's shards."""
    return sum(prod(layout.local_shape) for layout in work.layouts.values())


def states(work: RankWork) -> tuple[Amount, Amount, Amount]:
    """The memory that stays from step to step, and the gradients of one step before they are freed."""
    place = ON_HOST if work.offloads else ""
    return (
        _stored("parameters", work.layouts, place),
        _optimizer(work, place=place),
        _stored("gradients", work.with_gradients, place),
    )


def _stored(name: str, layouts: Mapping[str, ParameterLayout], place: str) -> Amount:
    elements: Counter[DType] = Counter()
    for layout in layouts.values():
        elements[layout.dtype] += prod(layout.local_shape)
    terms = (f"{number:_} elements x {dtype}" for dtype, number in elements.items())
    stored = sum(layout.local_bytes for layout in layouts.values())
    return Amount(name, stored, True, " + ".join(terms) + place, "local shapes")


def _optimizer(work: RankWork, *, place: str) -> Amount:
    """Saving makes the state of parameters that no gradient reaches, if they are not frozen."""
    names, kind = work.optimizer.settings.state_names, work.optimizer.settings
    trained = [layout for layout in work.layouts.values() if not layout.is_frozen]
    num_bytes = len(names) * sum(layout.local_bytes for layout in trained)
    what = "parameters" if len(trained) == len(work.layouts) else "parameters that are not frozen"
    formula, kept = f"{len(names)} x {what}", list(names)
    if kind.has_step_counter:
        num_bytes += STEP_BYTES * len(trained)
        formula += f" + {STEP_BYTES} x {len(trained):_} step counters"
        kept.append("step")
    source = f"torch.optim.{kind.torch_class}: {', '.join(kept) or 'no state'}"
    return Amount("optimizer", num_bytes, True, f"{formula}{place}", source)


def update_bytes(work: RankWork) -> int:
    """The peak of the optimizer's temporary tensors: for a whole group, or for one parameter."""
    op = work.optimizer
    sizes = {fqn: layout.local_bytes for fqn, layout in work.with_gradients.items()}
    at_once = max if op.implementation_on("cuda") == "for_loop" else sum
    return max(
        op.num_copies(group) * at_once([sizes[fqn] for fqn in group.parameters if fqn in sizes] or [0])
        for group in op.groups
    )
