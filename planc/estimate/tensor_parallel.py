"""The communication of tensor parallelism: what the edges of modules send, forward and backward."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from math import prod

from planc.estimate.flops import computes_logits_twice
from planc.estimate.layout import ParameterLayout
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Collective, Kind
from planc.estimate.selective import keeps_scattered, results_read
from planc.graph.graph import Graph
from planc.graph.ops import BuildDistillationLoss, CompileModules
from planc.graph.pipeline import pipeline_of
from planc.inventory.adapters import is_magnitude
from planc.inventory.footprint import Call
from planc.inventory.schema import Kind as ModuleKind
from planc.inventory.schema import Module
from planc.styles import BY_NAME
from planc.styles.edges import FEATURES, At, Edge, Transfer
from planc.vocab import DType, MeshDim, Replicate, ancestors, is_of_experts_adapter, outwards

_OVER = (MeshDim.TP,)


def tensor_parallel_collectives(work: RankWork) -> Iterator[Collective]:
    """The collectives over tp of a step.

    Inside recomputed modules, the forward collectives happen twice, except after the last tensor that
    backward needs: torch stops recomputing there (torch/utils/checkpoint.py, early stop), at the end of a
    module that is compiled as one. What is compiled with its recomputation inside leaves out all that
    backward does not read: of a dropout, it reads the mask.
    """
    compiled = {fqn for op in work.graph.setup if isinstance(op, CompileModules) for fqn in op.modules}
    drawn = {source for fqn in work.draws for source in _drawn(work, fqn)}
    read, merged = {*_with_returned(work, results_read(work))}, {*_merged(work, compiled)}
    for fqn, edges in work.edges.items():
        module, region = work.module(fqn), work.checkpoint_around(fqn)
        is_repeated = region is not None
        is_followed = fqn in drawn or _is_followed(work, module) or _is_recomputed_as_one(work, fqn, compiled)
        is_inside = _is_recomputed_in_compiled_code(work, fqn, compiled)
        is_needed = (fqn, region) in read if is_inside else is_followed
        is_sent_again = is_repeated and is_needed and not keeps_scattered(work, fqn)
        for edge in edges:
            again = is_repeated if edge.at is At.INPUT else is_sent_again
            is_output = edge.at in (At.OUTPUT, At.ROTARY_OUTPUT)
            passed = work.flow.outputs if is_output else work.flow.inputs
            for call, number in Counter(module.calls).items():
                forwards = number * (1 + (again and _is_in_backward(work, fqn, call)))
                is_merged = (fqn, edge.at) in merged
                if is_output or not is_merged:
                    yield from _sent(work, module, edge, edge.forward, call, times=forwards)
                is_passed = fqn in passed and not call.without_gradients and not (is_output and is_merged)
                if is_passed and (is_output or not call.is_constant):
                    yield from _sent(work, module, edge, edge.backward, call, times=number)
    yield from _parameter_gradients(work)
    yield from _loss(work)


def _is_in_backward(work: RankWork, fqn: str, call: Call) -> bool:
    """Whether backward repeats a call: all of a recomputed module's, unless it ran without gradients too."""
    around = work.checkpoint_around(fqn)
    ran_without = around is not None and any(made.without_gradients for made in work.module(around).calls)
    return not (ran_without and call.without_gradients)


def _is_followed(work: RankWork, module: Module) -> bool:
    """Whether the recomputed module around this one keeps something for backward after it has returned."""
    region = work.checkpoint_around(module.fqn)
    return region is not None and module.ends < module.fqn.count(".") - region.count(".")


def _drawn(work: RankWork, fqn: str) -> Iterator[str]:
    """Yield the modules whose outputs a module's dropouts take, if what is recomputed has both."""
    region = work.region(fqn)
    if region is not None:
        sources = (source for draw in work.module(fqn).draws for source in draw.sources)
        yield from (source for source in sources if source.startswith(f"{region}."))


def _is_recomputed_as_one(work: RankWork, fqn: str, compiled: Container[str]) -> bool:
    """Whether a module is in compiled code that backward repeats as a whole: it can't stop inside."""
    outer = _compiled_around(fqn, compiled)
    around = work.region(outer) if outer is not None else None
    return around is not None and (around != outer or around in work.offloaded)


def _is_recomputed_in_compiled_code(work: RankWork, fqn: str, compiled: Container[str]) -> bool:
    region = work.checkpoint_around(fqn)
    is_inside = region is not None and any(name in compiled for name in outwards(region))
    return is_inside and region not in work.offloaded


def _merged(work: RankWork, compiled: Container[str]) -> Iterator[tuple[str, At]]:
    """Yield the edges whose gather compiled code has already (common subexpressions in torch/_functorch).

    In forward it is of what another module reads too, in backward of the gradient of a sum of outputs.
    """
    modules = work.inventory.modules
    around = {module.fqn: _compiled_around(module.fqn, compiled) for module in modules}
    readers = ((source, around[reader.fqn]) for reader in modules for source in reader.sources)
    read = {*_with_returned(work, readers)}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for fqn, edges in work.edges.items():
        if (outer := around[fqn]) is None:
            continue
        for edge in edges:
            match edge.at:
                case At.INPUT if edge.forward is Transfer.ALL_GATHER:
                    reader = _first_reader(work, work.module(fqn))
                    gathered = (outer, (fqn,) if reader is None else reader.sources)
                case At.OUTPUT if edge.backward is Transfer.ALL_GATHER and (fqn, outer) not in read:
                    gathered = (outer, ())
                case _:
                    continue
            if gathered in seen:
                yield fqn, edge.at
            seen.add(gathered)


def _compiled_around(fqn: str, compiled: Container[str]) -> str | None:
    return next((name for name in ancestors(fqn) if name in compiled), None)


def _with_returned(
    work: RankWork, read: Iterable[tuple[str, str | None]]
) -> Iterator[tuple[str, str | None]]:
    """Yield (module, region) of modules whose outputs are read, of those around them that return the same,
    and of those inside that reach what they return."""
    returning: defaultdict[str, list[str]] = defaultdict(list)
    for module in work.inventory.modules:
        for name in ancestors(module.fqn)[: module.ends]:
            returning[name].append(module.fqn)
    for source, region in read:
        module = work.module(source)
        around = ancestors(source)[: module.ends]
        yield from ((name, region) for name in (source, *around, *module.returns, *returning[source]))


def _sent(
    work: RankWork, module: Module, edge: Edge, transfer: Transfer, call: Call, *, times: int
) -> Iterator[Collective]:
    """Yield a transfer's collective: gathers and exchanges take a rank's shard, reductions all shards."""
    # Without a known routing, experts take no weights of tokens.
    if not transfer.sends or (edge.at is At.ROUTING_WEIGHTS and module.routing is None):
        return
    num_bytes = _value_bytes(work, module, edge, call)
    if transfer in (Transfer.ALL_GATHER, Transfer.ALL_TO_ALL):
        num_bytes = _shard_bytes(work, module, edge, call)
    elif transfer is Transfer.REDUCE_SCATTER and FEATURES in (edge.arriving.value, edge.leaving.value):
        num_bytes = work.tp * _shard_bytes(work, module, edge, call)
    yield Collective(_OVER, work.tp, Kind(transfer.value), "tp.shard", times * work.times, num_bytes)


def _dtype(work: RankWork, module: Module) -> DType:
    """The dtype of a module's values: a linear layer computes in its weight's, which may be its own."""
    weight = work.layout(f"{module.fqn}.weight") if module.is_linear else None
    is_cast = work.fsdp is not None and work.fsdp.param_dtype is not None
    return work.compute_dtype if weight is None or weight.block or is_cast else weight.dtype


def _value_bytes(work: RankWork, module: Module, edge: Edge, call: Call) -> int:
    element = _dtype(work, module).size_bytes
    if is_magnitude(module.fqn):
        # The squared lengths of a weight's rows, whatever the tokens.
        return _weight(module)[0] * max(DType.FLOAT32.size_bytes, element)
    if edge.at is At.ROUTING_WEIGHTS and module.routing is not None and module.routing.in_float32:
        element = DType.FLOAT32.size_bytes
    return _num_rows(work, call) * _width(work, module, edge.at) * element


def _num_rows(work: RankWork, call: Call) -> int:
    return work.num_tokens * call.rows_per_token + work.num_samples * call.rows_per_sequence


def _shard_bytes(work: RankWork, module: Module, edge: Edge, call: Call) -> int:
    """Bytes of a rank's shard; uneven features are padded to the largest."""
    if FEATURES in (edge.arriving.value, edge.leaving.value):
        width = _width(work, module, edge.at)
        return _num_rows(work, call) * -(-width // work.tp) * _dtype(work, module).size_bytes
    return _value_bytes(work, module, edge, call) // work.tp


def _width(work: RankWork, module: Module, at: At) -> int:
    """The features of a value at a module's edge."""
    match at:
        case At.ROUTING_WEIGHTS:
            assert module.routing is not None, "only experts with a known routing have this edge"
            return module.routing.experts_per_token
        case At.ROTARY_OUTPUT:
            return _rotary_width(work, module)
        case At.INPUT if module.is_linear:
            return module.in_features
        case At.OUTPUT if module.is_linear:
            return module.out_features
        case At.OUTPUT if module.kind is ModuleKind.EMBEDDING:
            return _weight(module)[1]
        case At.INPUT:
            return _input_width(work, module)
        case _:
            return work.inventory.hidden_size


def _input_width(work: RankWork, module: Module) -> int:
    """The width that a module takes from outside: Zamba's attention takes two hidden states."""
    reader = _first_reader(work, module)
    return work.inventory.hidden_size if reader is None else reader.in_features


def _first_reader(work: RankWork, module: Module) -> Module | None:
    """The linear layer that takes what the module takes: itself, or the first inside."""
    if module.is_linear:
        return module

    def is_inside(fqn: str) -> bool:
        return fqn.startswith(f"{module.fqn}.")

    layers = (work.module(fqn) for fqn in work.inventory.names() if is_inside(fqn))
    readers = (layer for layer in layers if layer.is_linear and not any(map(is_inside, layer.sources)))
    return next(readers, None)


def _rotary_width(work: RankWork, module: Module) -> int:
    """The width of a latent projection's output that the norm after it does not take."""
    normed = max(
        (
            parameter.num_elements
            for reader in work.inventory.modules
            if reader.kind is ModuleKind.NORM and reader.sources == (module.fqn,)
            for parameter in reader.parameters
        ),
        default=0,
    )
    return _weight(module)[0] - normed


def _weight(module: Module) -> tuple[int, ...]:
    return next(parameter.shape for parameter in module.parameters if parameter.name == "weight")


def _parameter_gradients(work: RankWork) -> Iterator[Collective]:
    """Gradients of replicated parameters with different activations on ranks: summed once per step.

    All in one message, except under FSDP, which sums them itself, one by one, whenever it reduces. Those of
    several micro steps it adds in its reduce dtype (FSDPParam.to_accumulated_grad).
    """
    by_owner = {
        work.owners.get(layout.fqn, layout.fqn): prod(layout.tp_shape)
        for fqn, use in work.styles.items()
        for parameter in work.module(fqn).parameters
        if (layout := work.layout(f"{fqn}.{parameter.name}")) is not None
        and layout.has_gradient
        and (BY_NAME[use.style].reduces_parameter_gradients or _lacks_sum(layout))
    }
    if not by_owner:
        return
    sizes = list(by_owner.values())
    is_each = work.fsdp is not None and work.fsdp.reduce_every == "micro_batch"
    times = work.times - _num_weights_in_a_row(work) if is_each else 1
    dtype = work.compute_dtype if is_each or work.times == 1 else work.reduce_dtype
    for num_elements in (sum(sizes),) if work.fsdp is None else sizes:
        num_bytes = num_elements * dtype.size_bytes
        yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, "grads.sync", times, num_bytes)


def _lacks_sum(layout: ParameterLayout) -> bool:
    """Whether ranks compute other summands with what they all have of experts' adapters."""
    return is_of_experts_adapter(layout.fqn) and ((MeshDim.TP,), Replicate()) in layout.placements


def _num_weights_in_a_row(work: RankWork) -> int:
    """Count the reductions of the rank's stage that have gradients of linear layers' weights alone.

    Only a schedule with one stage for each rank computes those apart from backward.
    """
    pipeline = pipeline_of(work.graph)
    if pipeline is None:
        return 0
    names = {*work.inventory.names()}
    stages = (unit.stage for unit in pipeline.units if not names.isdisjoint(unit.modules))
    return pipeline.num_weights_in_a_row(next(stages, 0))


def num_log_sums(graph: Graph) -> int:
    """The sums of exponentials that the loss of a token has: one for each temperature."""
    losses = [op for op in graph.setup if isinstance(op, BuildDistillationLoss)]
    return 2 if any(loss.weight < 1 and loss.temperature != 1 for loss in losses) else 1


def _loss(work: RankWork) -> Iterator[Collective]:
    """Every token's maximum, sum of exponentials and label logit (torch.distributed.tensor.parallel.loss).

    For the plan's own loss, the logits. A divergence at another temperature has sums of its own.
    """
    cause = "loss" if work.loss_chunks == 1 else "forward"
    head = work.inventory.head
    if work.vocab_over and work.has_own_loss and head is not None:
        columns = -(-work.inventory.vocab_size // work.tp)
        num_bytes = work.num_tokens // work.loss_chunks * columns * _dtype(work, head).size_bytes
        count = work.loss_chunks * work.times
        yield Collective(_OVER, work.tp, Kind.ALL_GATHER, cause, count, num_bytes)
    elif work.vocab_over:
        num_bytes = work.num_tokens // work.loss_chunks * work.loss_bytes
        times = Counter({num_log_sums(work.graph) * num_bytes: 2})
        times[num_bytes] += 1
        for size, number in times.items():
            count = number * work.loss_chunks * (1 + computes_logits_twice(work)) * work.times
            yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, cause, count, size)
