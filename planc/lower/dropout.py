"""Dropout as ops: which modules drop what, and how ranks hold the tensors."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import AttachDropout, Draw
from planc.inventory.adapters import is_of_adapter
from planc.layouts.draws import placed_draws
from planc.layouts.flow import layout_flow
from planc.plan.bind import BoundPlan


def attach_dropout(bound: BoundPlan) -> Iterator[AttachDropout]:
    """One op for all modules of one name that draw the same, in the model's order."""
    plan = bound.plan
    if not any(module.draws for module in bound.inventory.modules):
        return
    families: dict[tuple[str, int, tuple[Draw, ...]], list[str]] = {}
    for module, placed in placed_draws(bound, layout_flow(bound)):
        if not plan.model.dropout and not is_of_adapter(module.fqn):
            continue
        draws = tuple(
            Draw(one.draw.probability, one.draw.dims, one.layout) for one in placed if one.layout is not None
        )
        name, depth = module.fqn.rpartition(".")[2], module.fqn.count(".")
        families.setdefault((name, depth, draws), []).append(module.fqn)
    for (_, _, draws), modules in families.items():
        yield AttachDropout(
            modules=tuple(modules),
            draws=draws,
            seed=plan.model.seed,
            over=plan.tensor_parallel.on if plan.tensor_parallel else (),
            span=plan.span("model.dropout"),
        )
