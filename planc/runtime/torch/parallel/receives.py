"""Receives of a pipeline's rank in a step: some messages are asked for before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor

from planc.pipelining.orders import Direction, Order

Message = tuple[str, int, int]
"""`activations` or `gradients`, the stage that receives them, and the micro-batch."""
Asked = tuple[dist.Work, Tensor]
"""A receive under way, and the tensor that it fills."""


@dataclass(slots=True)
class Receives:
    """The messages that this rank has asked for and not taken."""

    following: Mapping[Message, Message] = field(default_factory=dict)
    """The message to ask for with each message of a step; empty to ask for each when it is needed."""
    _asked: dict[Message, Asked] = field(default_factory=dict)

    def take(self, message: Message, ask: Callable[[Message], Asked], *, is_followed: bool) -> Tensor:
        """Wait for a message, once the one that follows it is asked for too, if it is followed by one."""
        if message not in self._asked:
            self._asked[message] = ask(message)
        later = self.following.get(message) if is_followed else None
        if later is not None:
            self._asked[later] = ask(later)
        work, hidden = self._asked.pop(message)
        work.wait()
        return hidden


def following(order: Order, *, num_stages: int) -> dict[Message, Message]:
    """The message of the same kind that a rank needs after each one in a step, by that one."""
    kinds = (("activations", Direction.FORWARD, 0), ("gradients", Direction.BACKWARD, num_stages - 1))
    return dict(pair for kind in kinds for pair in pairwise(_messages(order, *kind)))


def _messages(order: Order, what: str, direction: Direction, end: int) -> Iterator[Message]:
    """The messages of a kind in the order of their use; the stage at its `end` receives none."""
    for action in order:
        if action.direction is direction and action.stage != end:
            yield what, action.stage, action.micro_batch
