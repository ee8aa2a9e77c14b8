"""The activations that stacked experts and their routers keep for backward, and the messages between experts.

With R = T k rows, a token for each of its k experts, of width h, and experts of inner width f; T
are the tokens that a rank's routers choose for:

    experts     b R (h + f + h)       the sorted rows, the inputs of down, the outputs of down
    activation  c R u                 the outputs of up and what else their function keeps, c bytes an element
                                      as the inventory has measured; u is 2 f for a gate
    adapters    b R r                 what A of an adapter makes of the rows, for each stack
    returned    b R h                 the results that came back, if tokens are dispatched
    weights     R                     of the sum over a token's experts: float32, or the compute dtype
    router      h T + 4 E T           its input, and probabilities in float32

Where tokens are dispatched, a rank's experts take the rows that it gets from all: R for an equal load, which
is what an estimate assumes unless it is given another. With a capacity they take as many as that is, filled
or not. Sorted positions are ignored, as small. The rows are
those of transformers' `grouped_mm_experts_forward`; loops over experts keep as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.estimate.rank_work import RankWork
from planc.estimate.result import Collective, Kind
from planc.inventory.adapters import own_stacks
from planc.inventory.footprint import ONE_OPERATION
from planc.inventory.routers import num_stacked
from planc.inventory.schema import Module
from planc.record import record
from planc.vocab import DOWN, UP, ExpertDim

_FLOAT32_BYTES = 4
_COUNT_BYTES = 8
"""Numbers of rows are int64."""


@record
class Saved:
    """Bytes that a module keeps, and the most that gradients of its rows take while backward passes it."""

    kept: int
    passing: int


def experts_saved(work: RankWork) -> Mapping[str, Saved]:
    """Saved by each module of stacked experts, and by the routers before them."""
    saved: dict[str, Saved] = {}
    dispatched = work.graph.experts.modules if work.graph.experts else ()
    for module in work.inventory.modules:
        if module.routing is None or not (widths := _widths(work, module)):
            continue
        up, down = widths
        hidden, element = work.inventory.hidden_size, work.compute_dtype.size_bytes
        num_rows = num_routed(work) * module.routing.experts_per_token
        num_taken = rows_taken(work, module)
        # Results that came back from other ranks, which the weights of a token's experts multiply.
        returned = hidden * element if module.fqn in dispatched else 0
        weight_bytes = _FLOAT32_BYTES if module.routing.in_float32 else element
        activation = work.activation(module)
        between = up * work.by_size(activation.kept)
        if module.activation == ONE_OPERATION and up == 2 * down and module.fqn not in work.fused:
            # No gate that was measured keeps less than its input and one factor.
            between += down * element
        # The inputs and outputs of down are freed when backward passes the function between.
        inputs = hidden * _trains(work, module, 0) + down * _trains(work, module, -1)
        inputs += _adapters_width(work, module)
        passing = up * work.by_size(activation.passing) - (hidden + down) * element
        saved[module.fqn] = Saved(
            num_taken * ((hidden + inputs) * element + between) + num_rows * (weight_bytes + returned),
            num_taken * max(2 * hidden * element, (up + hidden) * element, passing),
        )
        for router in map(work.module, module.sources):
            if _is_router(router, module):
                saved[router.fqn] = _router(work, router, input_bytes=weight_bytes)
    return saved


def dispatch_collectives(work: RankWork) -> Iterator[Collective]:
    """Tokens sent to the ranks of their experts, and results sent back, in forward, again where backward
    recomputes it, and mirrored in backward. Each rank sends a row for each of its tokens and their experts.

    Loads only decide what comes back: the results of what a rank receives, and in backward the gradients.
    """
    op = work.graph.experts
    if op is None:
        return
    cause, size, capacity = op.name, op.size, work.graph.capacity

    def over_ep(count: int, input_bytes: int, *, is_routed: bool = False) -> Collective:
        return Collective((ExpertDim.EP,), size, Kind.ALL_TO_ALL, cause, count, input_bytes, is_routed)

    for module in map(work.inventory.get, op.modules):
        # Another stage of a pipeline has some of them.
        if module is not None and module.routing is not None:
            forwards = work.times * (1 + (work.region(module.fqn) is not None))
            row_bytes = work.inventory.hidden_size * work.compute_dtype.size_bytes
            taken_bytes = rows_taken(work, module) * row_bytes
            of_results = work.times * work.is_passed(module.fqn)
            of_rows = work.times * (module.fqn in work.flow.inputs)
            if capacity is not None and module.fqn in capacity.modules:
                yield over_ep(2 * forwards + of_results + of_rows, taken_bytes)
                continue
            num_bytes = num_routed(work) * module.routing.experts_per_token * row_bytes
            yield over_ep(forwards, _COUNT_BYTES * num_stacked(module))
            yield over_ep(forwards + of_results, num_bytes)
            yield over_ep(forwards + of_rows, taken_bytes, is_routed=True)


def num_routed(work: RankWork) -> int:
    """The tokens of one micro step that a rank's routers choose experts for."""
    return work.num_tokens // work.tp if work.graph.routes_shards else work.num_tokens


def rows_taken(work: RankWork, module: Module) -> int:
    """The rows that stacked experts compute: those of this rank's tokens, or what ranks send it."""
    assert module.routing is not None, "experts have a router"
    graph, per_token, number = work.graph, module.routing.experts_per_token, num_stacked(module)
    if graph.experts is None or module.fqn not in graph.experts.modules:
        return num_routed(work) * per_token
    if graph.capacity is None or module.fqn not in graph.capacity.modules:
        return num_routed(work) * per_token * work.expert_load
    length = work.sequence_length
    each = graph.capacity.num_rows(length=length, per_token=per_token, num_experts=number)
    return number * each * work.num_samples


def _trains(work: RankWork, module: Module, index: int) -> bool:
    """Whether the first or the last stack or its adapter has a gradient, for which its input is kept."""
    name = own_stacks(module)[index].name
    return work.trains(module, name) or work.has_gradient(f"{module.fqn}.{name}_{DOWN}")


def _adapters_width(work: RankWork, module: Module) -> int:
    """The features that the second halves of a row's adapters take."""
    stacks = (work.layout(f"{module.fqn}.{stack.name}_{UP}") for stack in own_stacks(module))
    return sum(layout.tp_shape[2] for layout in stacks if layout is not None and layout.has_gradient)


def _widths(work: RankWork, module: Module) -> tuple[int, int] | None:
    """The inner width on this rank: the output of the first stack and the input of the last one."""
    layouts = [work.layout(f"{module.fqn}.{stack.name}") for stack in own_stacks(module)]
    inner = [_inner(layout.tp_shape, work.inventory.hidden_size) for layout in layouts if layout is not None]
    return (inner[0], inner[-1]) if len(inner) > 1 else None


def _inner(shape: tuple[int, ...], hidden_size: int) -> int:
    """The dimension of [experts, out, in], or [experts, in, out], that is not the hidden size."""
    _, first, second = shape
    return second if first == hidden_size else first


def _is_router(module: Module, experts: Module) -> bool:
    """Whether a module that feeds experts has one row of weights for each."""
    num_experts = next(parameter.shape[0] for parameter in experts.parameters if len(parameter.shape) == 3)
    return num_experts in (parameter.shape[0] for parameter in module.parameters if len(parameter.shape) == 2)


def _router(work: RankWork, router: Module, *, input_bytes: int) -> Saved:
    num_experts = next(parameter.shape[0] for parameter in router.parameters if len(parameter.shape) == 2)
    # The input of a linear layer is counted with those of all others.
    width = 0 if router.is_linear or not work.trains(router) else work.inventory.hidden_size
    probabilities = num_routed(work) * num_experts * _FLOAT32_BYTES
    return Saved(num_routed(work) * width * input_bytes + probabilities, probabilities)
