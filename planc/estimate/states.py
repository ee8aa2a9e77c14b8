"""Parameters, gradients and optimizer state: exact, from the local shapes."""

from __future__ import annotations

from collections import Counter
from math import prod

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
    elements: Counter[DType] = Counter()
    for layout in work.layouts.values():
        elements[layout.dtype] += prod(layout.local_shape)
    stored = sum(layout.local_bytes for layout in work.layouts.values())
    place = ON_HOST if work.offloads else ""
    terms = (f"{number:_} elements x {dtype}" for dtype, number in elements.items())
    formula = " + ".join(terms) + place
    return (
        Amount("parameters", stored, True, formula, "local shapes"),
        _optimizer(work, stored=stored, place=place),
        Amount("gradients", stored, True, formula, "local shapes"),
    )


def _optimizer(work: RankWork, *, stored: int, place: str) -> Amount:
    names, kind = work.optimizer.state_names, work.optimizer.optimizer
    num_bytes, formula, kept = len(names) * stored, f"{len(names)} x parameters", list(names)
    if kind.has_step_counter:
        num_bytes += STEP_BYTES * len(work.layouts)
        formula += f" + {STEP_BYTES} x {len(work.layouts):_} step counters"
        kept.append("step")
    source = f"torch.optim.{kind.torch_class}: {', '.join(kept) or 'no state'}"
    return Amount("optimizer", num_bytes, True, f"{formula}{place}", source)


def update_bytes(work: RankWork) -> int:
    """The peak of the optimizer's temporary tensors: for a whole group, or for one parameter."""
    op = work.optimizer
    sizes = {fqn: layout.local_bytes for fqn, layout in work.layouts.items()}
    at_once = max if op.implementation_on("cuda") == "for_loop" else sum
    return max(
        op.num_copies(group) * at_once([sizes[fqn] for fqn in group.parameters if fqn in sizes] or [0])
        for group in op.groups
    )
