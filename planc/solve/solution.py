"""The types of what a search found."""

from __future__ import annotations

from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.solve.choices import Cost


@record
class Solved:
    """The rules of one container, with what they cost; and the next best, if that was asked for.

    `refused` is the finding about the cheapest rules, which the checks refuse.
    """

    container: str
    actions: tuple[tuple[str, StyleAction], ...]
    cost: Cost
    num_tried: int
    refused: str = ""
    runner_up: tuple[tuple[str, StyleAction], ...] = ()
    runner_up_cost: Cost | None = None


@record
class Solution:
    """What a search found for a model: the rules by family, and how each container's were chosen.

    `refused` says why there are no rules.
    """

    actions: tuple[tuple[str, StyleAction], ...]
    solved: tuple[Solved, ...]
    refused: str = ""

    @property
    def num_tried(self) -> int:
        return sum(one.num_tried for one in self.solved)
