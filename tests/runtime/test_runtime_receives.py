"""When a rank of a pipeline asks for its messages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from planc.pipelining.orders import Schedule, make_orders
from planc.runtime.torch.parallel.receives import Asked, Message, Receives, following


class Line:
    """Records what is asked for and waited for, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Message]] = []

    def ask(self, message: Message) -> Asked:
        self.events.append(("ask", message))
        work: Any = Wait(self, message)
        return work, torch.tensor(message[2])


class Wait:
    def __init__(self, line: Line, message: Message) -> None:
        self.line, self.message = line, message

    def wait(self) -> None:
        self.line.events.append(("wait", self.message))


def activations(micro_batch: int) -> Message:
    return "activations", 1, micro_batch


CHAIN = {activations(0): activations(1), activations(1): activations(2)}


def test_a_message_is_asked_for_before_the_one_before_it_is_waited_for() -> None:
    line, receives = Line(), Receives(CHAIN)
    taken = [int(receives.take(activations(one), line.ask, is_followed=True)) for one in range(3)]
    assert taken == [0, 1, 2]
    assert line.events == [
        ("ask", activations(0)),
        ("ask", activations(1)),
        ("wait", activations(0)),
        ("ask", activations(2)),
        ("wait", activations(1)),
        ("wait", activations(2)),
    ]


@pytest.mark.parametrize(("chain", "is_followed"), [({}, True), (CHAIN, False)])
def test_only_what_is_needed_is_asked_for_without_an_order(
    chain: dict[Message, Message], *, is_followed: bool
) -> None:
    line, receives = Line(), Receives(chain)
    for one in range(2):
        receives.take(activations(one), line.ask, is_followed=is_followed)
    assert line.events == [(event, activations(one)) for one in range(2) for event in ("ask", "wait")]


@pytest.mark.parametrize(
    ("schedule", "stages_per_rank"), [*((one, 1 + (one == "interleaved")) for one in Schedule)]
)
def test_each_message_of_a_step_but_the_first_of_its_kind_follows_one(
    schedule: Schedule, stages_per_rank: int
) -> None:
    orders = make_orders(schedule, num_ranks=2, stages_per_rank=stages_per_rank, num_micro_batches=4)
    last = 2 * stages_per_rank - 1
    for order in orders:
        found = following(order, num_stages=last + 1)
        needed = {
            "activations": [
                (one.stage, one.micro_batch) for one in order if one.direction == "F" and one.stage
            ],
            "gradients": [
                (one.stage, one.micro_batch) for one in order if one.direction == "B" and one.stage < last
            ],
        }
        pairs = [
            ((what, *before), (what, *after))
            for what, messages in needed.items()
            for before, after in pairwise(messages)
        ]
        assert list(found.items()) == pairs
