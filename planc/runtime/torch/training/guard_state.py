"""The state by which a rank judges a step's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from planc.runtime.loss_window import Memory
from planc.runtime.ranks.statements import Statements


@dataclass(slots=True)
class GuardState:
    """`micro_losses` are this rank's shares of the step's loss, by micro step. The rest outlives a step."""

    statements: Statements | None = None
    """None if a rank reports only for itself."""
    micro_losses: list[Tensor] = field(default_factory=list)
    is_skipped: bool = False
    """The optimizer does not change the weights in this step."""
    memory: Memory = field(default_factory=Memory)
    replicas_agreed_at: int | None = None
    """The last step after which replicas agreed, of those that this process has compared."""
