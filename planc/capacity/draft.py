"""A bound plan's graph, and what that needs: each computed once, however many ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from planc.graph.graph import Graph
from planc.graph.sources import AnySource
from planc.lower import Lowered, trace_passes, verified
from planc.lower.data import open_data, open_sources
from planc.plan.bind import BoundPlan
from planc.plan.spec import Plan

if TYPE_CHECKING:
    from planc.devices.hardware import Demand, PairDemand
    from planc.estimate.layout import ParameterLayout
    from planc.estimate.result import Estimate


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan that may break rules. Not slotted: its parts are kept when first asked for."""

    bound: BoundPlan

    @cached_property
    def passes(self) -> tuple[Lowered, ...]:
        return tuple(trace_passes(self.bound))

    @property
    def graph(self) -> Graph:
        """Unverified: to compare with and to estimate, never to run."""
        return self.passes[-1].graph

    @cached_property
    def compiled(self) -> Graph:
        """The same graph, verified after every pass, of a plan that passed its checks."""
        return verified(self.passes)

    @cached_property
    def layouts(self) -> tuple[ParameterLayout, ...]:
        """The layout of every parameter."""
        from planc.estimate.layout import layouts

        return layouts(self.graph, self.bound.inventory)

    @cached_property
    def estimate(self) -> Estimate:
        # Most checks that find errors need none, and should not wait for the import.
        from planc.estimate.estimate import estimate

        return estimate(self.graph, self.bound.inventory)

    @cached_property
    def demand(self) -> Demand | None:
        """The plan's demand of the device that it names, with the near plans that fit where it does not."""
        from planc.capacity.fits import demand  # as above

        return demand(self)

    @cached_property
    def pairs(self) -> PairDemand | None:
        """The bytes that attention holds for pairs of tokens, if many, with the nearest plan without."""
        from planc.capacity.pairs import pair_demand  # as above

        return pair_demand(self)

    def estimated_facts(self) -> Mapping[str, int]:
        """The facts that take an estimate."""
        from planc.estimate.estimate import estimated_facts  # as above

        hardware = self.bound.plan.hardware
        return estimated_facts(self.estimate, device=hardware.gpu if hardware else None)


def data_ops(plan: Plan) -> tuple[AnySource, ...]:
    """The ops that open the training data: the sources of a mixture, then all of it."""
    return (*open_sources(plan), open_data(plan))
