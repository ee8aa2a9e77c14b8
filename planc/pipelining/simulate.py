"""A step of a pipeline, timed: when each action runs, how long ranks wait, what is in flight.

`simulate` also decides which orders are legal: it refuses all that would hang or compute something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from planc.pipelining.orders import Action, Direction, Order, has_weights, rank_of
from planc.record import record


class ScheduleError(ValueError):
    """Orders that can't be executed. The message names the actions and their ranks."""


@record
class Simulation:
    """A step of a pipeline. Times count from the step's start, in the unit of the stages' times."""

    starts: tuple[tuple[float, ...], ...]
    """When each action of each rank starts, in the rank's order."""
    ends: tuple[tuple[float, ...], ...]
    """When each action of each rank ends, in the rank's order."""
    seconds: float
    """When the last rank is done."""
    bubble: tuple[float, ...]
    """The share of the step in which a rank computes nothing, for each rank: 0 to 1."""
    in_flight: tuple[int, ...]
    """The most micro batches of a stage whose forward is done, and whose backward or weights are not."""
    rank_in_flight: tuple[int, ...]
    """The most that a rank's stages have in flight together."""
    max_sends: int
    """The most messages of one kind, activations or gradients, that any rank has sent and its neighbor has
    not received; 0 for one rank. With room for as many, these orders never hang: here is a run of them that
    needs no more, and when ranks wait for each other does not depend on times."""

    @property
    def mean_bubble(self) -> float:
        """The share of the step in which ranks compute nothing, on average."""
        return sum(self.bubble) / len(self.bubble)


def simulate(
    orders: Sequence[Order],
    *,
    num_stages: int,
    forward: Sequence[float],
    backward: Sequence[float],
    weights: Sequence[float] | None = None,
    message: float = 0.0,
) -> Simulation:
    """The step that the orders of all pp ranks make.

    `forward` and `backward` are the times of each stage for one micro batch. `weights` are the parts of
    `backward` that are actions of their own, if orders have these; by default half, one of two equal matmuls.
    `message` is the time from a send to its arrival on another rank. A rank waits for what it receives, never
    for what it sends.

    Raises ScheduleError for an action that is missing, comes twice or is on a wrong rank; for a backward
    before its forward, or weights before their backward; for a deadlock; and for messages of one kind,
    activations or gradients, that one rank receives from another in a different order than they are sent:
    NCCL has no tags to tell them apart.
    """
    step = _Step(
        num_ranks=len(orders),
        num_stages=num_stages,
        num_micro_batches=max((action.micro_batch + 1 for order in orders for action in order), default=0),
        directions=tuple(Direction) if has_weights(orders) else (Direction.FORWARD, Direction.BACKWARD),
    )
    codes = _codes(step, orders)
    messages = _messages(step, codes)
    durations = (*forward, *backward)
    if Direction.WEIGHTS in step.directions:
        weights = [one / 2 for one in backward] if weights is None else weights
        inputs = (whole - part for whole, part in zip(backward, weights, strict=True))
        durations = (*forward, *inputs, *weights)
    start_of, end_of = _run(step, codes, durations=durations, message=message)
    starts, ends = (tuple(tuple(map(of.__getitem__, own)) for own in codes) for of in (start_of, end_of))
    seconds = max(end[-1] for end in ends)
    busy = [
        step.num_micro_batches * sum(forward[stage] + backward[stage] for stage in step.stages_of(rank))
        for rank in range(step.num_ranks)
    ]
    in_flight, rank_in_flight = _in_flight(step, codes)
    return Simulation(
        starts=starts,
        ends=ends,
        seconds=seconds,
        bubble=tuple(1 - own / seconds if seconds else 0.0 for own in busy),
        in_flight=in_flight,
        rank_in_flight=rank_in_flight,
        max_sends=_max_sends(step, messages, start_of, end_of),
    )


def equal_step(orders: Sequence[Order], *, num_stages: int) -> Simulation:
    """The step in slots, with stages of equal time and messages that take none; raises ScheduleError.

    A backward has two matmuls for each of a forward, so it takes two slots; one without its weights.
    """
    return simulate(orders, num_stages=num_stages, forward=[1] * num_stages, backward=[2] * num_stages)


@record
class _Step:
    """Numbers the actions of a step from 0: the forwards, then the backwards, then the weights if they are
    apart, each stage by stage."""

    num_ranks: int
    num_stages: int
    num_micro_batches: int
    directions: tuple[Direction, ...]

    @property
    def size(self) -> int:
        """The actions of one direction."""
        return self.num_stages * self.num_micro_batches

    def name(self, code: int) -> str:
        row, micro_batch = divmod(code, self.num_micro_batches)
        direction, stage = divmod(row, self.num_stages)
        return str(Action(stage, self.directions[direction], micro_batch))

    def rank(self, code: int) -> int:
        return rank_of(code // self.num_micro_batches % self.num_stages, num_ranks=self.num_ranks)

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank, first to last."""
        return [one for one in range(self.num_stages) if rank_of(one, num_ranks=self.num_ranks) == rank]

    def senders(self) -> list[int | None]:
        """The action whose output each one receives: of the stage before, or after."""
        first, size = self.num_micro_batches, self.size
        forwards, backwards = range(size - first), range(size + first, 2 * size)
        weights = [None] * size * (len(self.directions) - 2)
        return [*[None] * first, *forwards, *backwards, *[None] * first, *weights]


def _codes(step: _Step, orders: Sequence[Order]) -> list[list[int]]:
    """The orders as numbers; raises ScheduleError unless every action is there once, on its stage's rank."""
    is_there = bytearray(len(step.directions) * step.size)
    offsets = {direction: index * step.size for index, direction in enumerate(step.directions)}
    codes = []
    for rank, order in enumerate(orders):
        if not order:
            raise ScheduleError(f"rank {rank} has no actions")
        of_rank = frozenset(step.stages_of(rank))
        own = []
        for action in order:
            stage, micro_batch = action.stage, action.micro_batch
            if stage not in of_rank or micro_batch < 0:
                raise ScheduleError(_misplaced(step, action, rank=rank))
            code = offsets[action.direction] + stage * step.num_micro_batches + micro_batch
            if is_there[code]:
                raise ScheduleError(f"rank {rank} has {action} twice")
            if code >= step.size and not is_there[code - step.size]:
                raise ScheduleError(f"rank {rank} has {action} before {step.name(code - step.size)}")
            is_there[code] = True
            own.append(code)
        codes.append(own)
    missing = is_there.find(0)
    if missing >= 0:
        raise ScheduleError(f"rank {step.rank(missing)} lacks {step.name(missing)}")
    return codes


def _misplaced(step: _Step, action: Action, *, rank: int) -> str:
    """Explain why a rank can't have an action; empty if it can."""
    if not (0 <= action.stage < step.num_stages and action.micro_batch >= 0):
        return f"rank {rank} has {action}, but stages are 0 to {step.num_stages - 1}"
    owner = rank_of(action.stage, num_ranks=step.num_ranks)
    return f"rank {rank} has {action}, but stage {action.stage} is on rank {owner}"


_Messages = tuple[list[int], list[int]]
"""The actions of a rank whose activations it sends, in order, and those whose gradients."""


def _messages(step: _Step, codes: list[list[int]]) -> list[_Messages]:
    """Return each rank's messages; ScheduleError where one receives in another order than its neighbor sends.

    Stages of one rank pass on tensors, not messages.
    """
    if step.num_ranks == 1:
        return []
    size, first = step.size, step.num_micro_batches
    sent = [
        (
            [code for code in own if code < size - first],
            [code for code in own if size + first <= code < 2 * size],
        )
        for own in codes
    ]
    for rank, own in enumerate(codes):
        before, after = (rank_of(rank + step_to, num_ranks=step.num_ranks) for step_to in (-1, 1))
        activations = [code - first for code in own if first <= code < size]
        gradients = [code + first for code in own if size <= code < 2 * size - first]
        for what, peer, sends, receives in (
            ("activations", before, sent[before][0], activations),
            ("gradients", after, sent[after][1], gradients),
        ):
            if sends != receives:
                pairs = zip(sends, receives, strict=True)
                send, receive = next((send, receive) for send, receive in pairs if send != receive)
                raise ScheduleError(
                    f"rank {peer} sends the {what} of {step.name(send)} to rank {rank}, "
                    f"which receives those of {step.name(receive)} first"
                )
    return sent


def _run(
    step: _Step, codes: list[list[int]], *, durations: Sequence[float], message: float
) -> tuple[list[float], list[float]]:
    """When every action starts and ends, by its number; raises ScheduleError for a deadlock."""
    senders, size = step.senders(), step.num_micro_batches
    # Stages of one rank pass on tensors, not messages.
    delay = message if step.num_ranks > 1 else 0.0
    start_of, end_of = [-1.0] * len(senders), [-1.0] * len(senders)
    done = [0] * step.num_ranks
    """The number of each rank's actions that had run when it last began to wait."""
    waiting: dict[int, int] = {}
    """The rank that waits for an action."""
    ready = deque(range(step.num_ranks))
    while ready:
        rank = ready.popleft()
        own, first = codes[rank], done[rank]
        now = end_of[own[first - 1]] if first else 0.0
        for place in range(first, len(own)):
            code = own[place]
            sender = senders[code]
            if sender is not None:
                sent = end_of[sender]
                if sent < 0:
                    waiting[sender], done[rank] = rank, place
                    break
                if sent + delay > now:
                    now = sent + delay
            start_of[code] = now
            now += durations[code // size]
            end_of[code] = now
            if code in waiting:
                ready.append(waiting.pop(code))
    if waiting:
        blocked = {rank: (codes[rank][done[rank]], sender) for sender, rank in waiting.items()}
        raise ScheduleError(_deadlock(step, blocked))
    return start_of, end_of


def _max_sends(
    step: _Step, messages: list[_Messages], start_of: Sequence[float], end_of: Sequence[float]
) -> int:
    """The most messages of one kind that a rank has under way. A message is received as its receiver starts,
    which makes room for what is sent later, not for what is sent at that moment."""
    most = 0
    for sent in messages:
        for codes, to_receiver in zip(sent, (step.num_micro_batches, -step.num_micro_batches), strict=True):
            num_received = 0
            for number, code in enumerate(codes, start=1):
                while start_of[codes[num_received] + to_receiver] < end_of[code]:
                    num_received += 1
                if number - num_received > most:
                    most = number - num_received
    return most


def _deadlock(step: _Step, blocked: dict[int, tuple[int, int]]) -> str:
    """Names the ranks that wait for each other, given each rank's next action and what it waits for."""
    rank = min(blocked)
    circle: list[int] = []
    while rank not in circle:
        circle.append(rank)
        rank = step.rank(blocked[rank][1])
    waits = [
        "rank {} waits at {} for {}".format(waiter, *map(step.name, blocked[waiter]))
        for waiter in circle[circle.index(rank) :]
    ]
    return f"deadlock: {', '.join(waits)}"


def _in_flight(step: _Step, codes: list[list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The most micro batches in flight: of each stage, and of each rank."""
    last = len(step.directions) - 1
    now = [0] * step.num_stages
    stages, ranks = [0] * step.num_stages, [0] * step.num_ranks
    for rank, own in enumerate(codes):
        held = 0
        for code in own:
            direction, stage = divmod(code // step.num_micro_batches, step.num_stages)
            if direction == last:
                held -= 1
                now[stage] -= 1
            if direction:
                continue
            held += 1
            now[stage] += 1
            if held > ranks[rank]:
                ranks[rank] = held
            if now[stage] > stages[stage]:
                stages[stage] = now[stage]
    return tuple(stages), tuple(ranks)
