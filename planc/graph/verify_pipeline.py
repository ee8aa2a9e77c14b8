"""The invariants of a graph's pipeline: its stages, its orders, and what stages send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.pipelining.orders import has_weights
from planc.pipelining.simulate import ScheduleError, equal_step
from planc.record import record
from planc.vocab import ExpertDim, MeshDim


@record
class Violation:
    op: str
    text: str

    def __str__(self) -> str:
        return f"{self.op}: {self.text}"


def pipeline_violations(graph: Graph) -> Iterator[Violation]:
    """All violations of the pipeline. A graph without pp has none of its ops."""
    splits = [op for op in graph.setup if isinstance(op, ops.SplitPipeline)]
    wanted = int(graph.size(MeshDim.PP) > 1)
    if len(splits) != wanted:
        yield Violation("graph", f"needs pipeline.split {wanted} times and has it {len(splits)} times")
    yield from _ties(graph, [owner for op in splits for owner, *_ in op.ties])
    for op in graph.step:
        if isinstance(op, ops.Accumulate | ops.Evaluate):
            yield from _messages(op, is_split=bool(wanted))
        if isinstance(op, ops.Accumulate) and not wanted:
            if op.orders:
                yield Violation(op.name, "has orders, but the mesh has one rank of pp")
            if any(isinstance(one, ops.ComputeWeightGradients) for one in op.body):
                yield Violation(op.name, "has backward.weights, but the mesh has one rank of pp")
        if isinstance(op, ops.Accumulate) and wanted and len(splits) == 1:
            stages = tuple(_stages(graph, splits[0]))
            yield from stages or _orders(graph, splits[0], op)


def _messages(op: ops.Accumulate | ops.Evaluate, *, is_split: bool) -> Iterator[Violation]:
    """A stage receives right before it runs and sends right after: otherwise it would send another's."""
    body: Sequence[Op] = op.body
    wanted = {
        (ops.ReceiveHidden, ops.Forward): "activations",
        (ops.Forward, ops.SendHidden): "activations",
        (ops.ReceiveHidden, ops.Backward): "gradients",
        (ops.Backward, ops.SendHidden): "gradients",
    }
    num_present = 0
    for before, after in pairwise(body):
        what = wanted.get((type(before), type(after)))
        message = before if isinstance(before, ops.ReceiveHidden) else after
        if what is not None and isinstance(message, ops.ReceiveHidden | ops.SendHidden):
            num_present += message.what == what and message.over == (MeshDim.PP,)
    num_messages = sum(isinstance(one, ops.ReceiveHidden | ops.SendHidden) for one in body)
    runs = sum(isinstance(one, ops.Forward | ops.Backward) for one in body)
    if num_present != num_messages or num_present != (2 * runs if is_split else 0):
        text = "needs a receive right before each forward and backward of a pipeline, and a send right after"
        yield Violation(op.name, text)


def _stages(graph: Graph, op: ops.SplitPipeline) -> Iterator[Violation]:
    """Every parameter is in one stage, stages follow the layers, and ranks have equally many."""
    ranks = graph.size(MeshDim.PP)
    if not op.stages or len(op.stages) % ranks:
        yield Violation(op.name, f"{len(op.stages)} stages are not a multiple of {ranks} ranks")
        return
    if op.over != (MeshDim.PP,) or min(op.shape) < 1:
        yield Violation(op.name, "splits over pp, and sends hidden states of a positive size")
    layers = [[name for name in stage if name.startswith(f"{op.blocks}.")] for stage in op.stages]
    if not all(layers):
        yield Violation(op.name, f"a stage has no member of {op.blocks}")
    numbers = [name.removeprefix(f"{op.blocks}.") for names in layers for name in names]
    if numbers != [str(number) for number in range(len(numbers))]:
        yield Violation(op.name, f"stages do not follow the members of {op.blocks}")
    if op.head not in op.stages[-1]:
        yield Violation(op.name, f"the last stage does not have {op.head}")
    stages_of: dict[str, list[int]] = {}
    for index, stage in enumerate(op.stages):
        for name in stage:
            stages_of.setdefault(name, []).append(index)
    for name in op.on_shards:
        if name != op.blocks and name not in stages_of:
            yield Violation(op.name, f"`{name}` is on shards of the sequence, and in no stage")
    yield from _tied_apart(stages_of, op)
    parameters = tuple(_parameters(graph))
    for name in (*parameters, *op.deferred):
        if (number := len(_holders(stages_of, name))) != 1:
            yield Violation(op.name, f"`{name}` is in {number} stages, not in one")
    yield from _unit_violations(graph, stages_of, parameters)


def _parameters(graph: Graph) -> Iterator[str]:
    for op in graph.setup:
        if isinstance(op, ops.FreezeParameters):
            yield from op.parameters
        if isinstance(op, ops.BuildOptimizer):
            yield from (name for group in op.groups for name in group.parameters)


def _unit_violations(
    graph: Graph, stages_of: Mapping[str, Sequence[int]], parameters: Sequence[str]
) -> Iterator[Violation]:
    """Every parameter is gathered whenever its stage runs: a unit of that stage alone holds it.

    The root's parameters would be gathered for the backward of the last stage only.
    """
    units = [op for op in graph.setup if isinstance(op, ops.FullyShard)]
    for op in units:
        for group in op.groups:
            if len({stage for name in group for stage in _holders(stages_of, name)}) > 1:
                yield Violation(op.name, f"`{group[0]}` is in a unit with modules of other stages")
    inside = {name: [0] for op in units for group in op.groups for name in group if name}
    # Next to experts alone, other parameters are whole on each rank.
    are_sharded = any(ExpertDim.EFSDP not in op.shard_over for op in units)
    for name in parameters if are_sharded else ():
        if not _holders(inside, name):
            text = f"`{name}` is in no unit of its stage: a backward would not gather it"
            yield Violation(units[-1].name, text)


def _ties(graph: Graph, owners: Sequence[str]) -> Iterator[Violation]:
    """Both copies of a weight get the same gradient, complete and before it is measured: otherwise they
    would drift apart."""
    sums = [op for op in graph.step if isinstance(op, ops.SumTies)]
    is_trained = not set(owners).issubset(graph.frozen)
    if len(sums) != is_trained:
        yield Violation("graph", f"needs grads.sum_ties {int(is_trained)} times and has it {len(sums)} times")
    if any(op.over != (MeshDim.PP,) for op in sums):
        yield Violation("grads.sum_ties", "sums over pp")
    for op in graph.step:
        if isinstance(op, ops.CompareReplicas) and owners and MeshDim.PP not in op.over:
            yield Violation(op.name, "does not compare the weights that two stages have")


def _tied_apart(stages_of: Mapping[str, Sequence[int]], op: ops.SplitPipeline) -> Iterator[Violation]:
    """A tied weight is in the first stage by its first name, and in the last by all others."""
    last = len(op.stages) - 1
    for owner, *others in op.ties:
        holders = {stage for name in others for stage in _holders(stages_of, name)}
        if _holders(stages_of, owner) != [0] or last not in holders or not holders <= {0, last}:
            yield Violation(op.name, f"`{owner}` is tied, but not between the first and the last stage")


def _holders(stages_of: Mapping[str, Sequence[int]], name: str) -> list[int]:
    """The stages that have a parameter or module, by itself or in a module around it."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return [stage for prefix in prefixes for stage in stages_of.get(prefix, ())]


def _orders(graph: Graph, split: ops.SplitPipeline, op: ops.Accumulate) -> Iterator[Violation]:
    """Each rank runs every action of its stages once, in an order that ends."""
    if len(op.orders) != graph.size(MeshDim.PP):
        yield Violation(op.name, f"has {len(op.orders)} orders for {graph.size(MeshDim.PP)} ranks of pp")
        return
    stages = len(split.stages)
    try:
        step = equal_step(op.orders, num_stages=stages)
    except ScheduleError as error:
        yield Violation(op.name, f"its orders can't run: {error}")
    else:
        number = 1 + max(action.micro_batch for action in op.orders[0])
        if number != op.times:
            yield Violation(op.name, f"its orders are for {number} micro-batches, not for {op.times}")
        if split.max_sends < step.max_sends:
            text = f"ranks may hang with {split.max_sends} sends under way, and don't with {step.max_sends}"
            yield Violation(split.name, text)
        yield from _weights(split, op, are_apart=has_weights(op.orders))


def _weights(split: ops.SplitPipeline, op: ops.Accumulate, *, are_apart: bool) -> Iterator[Violation]:
    """Gradients that a backward defers are computed after it: otherwise they would be missing."""
    places = [place for place, one in enumerate(op.body) if isinstance(one, ops.ComputeWeightGradients)]
    if places != [len(op.body) - 1] * are_apart:
        yield Violation(op.name, f"needs backward.weights {int(are_apart)} times, at the end of its body")
    if split.deferred and not are_apart:
        yield Violation(split.name, "defers gradients of weights that no order has")
    losses = (one for one in op.body if isinstance(one, ops.ComputeLoss) and one.chunks > 1)
    if any(loss.head in split.deferred for loss in losses):
        yield Violation(split.name, f"`{split.head}` has its gradients in forward, and can't defer them")
