"""Modules of experts that `expert_parallel` dispatches to."""

from __future__ import annotations

from planc.record import record
from planc.source import NOWHERE, Span


@record
class Dispatch:
    """Send each token to the ranks that hold its experts, and the experts' outputs back."""


@record
class AllExperts:
    """Dispatches to all routed experts of the model."""

    span: Span = NOWHERE
