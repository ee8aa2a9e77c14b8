"""A plan in a dozen lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planc.graph.graph import Graph
from planc.graph.ops import FullyShard, ShardTensorParallel
from planc.plan.bind import BoundPlan
from planc.plan.elastic import ElasticSpec
from planc.plan.elastic_meshes import smaller_plans
from planc.plan.facts import facts
from planc.plan.spec import AsyncSave, CheckpointSpec, Plan, Weights, WhenBusy
from planc.plan.types import type_of
from planc.show.table import Row, format_bytes, plural
from planc.vocab import Shard, StridedShard


def essence(bound: BoundPlan, graph: Graph) -> Iterator[Row]:
    """What a successful `check` says: mesh, parameters, modules and units, batch, memory, communication."""
    found = facts(bound.plan, bound.inventory)
    dims = " x ".join(f"{mesh_dim} {size}" for mesh_dim, size in graph.mesh if size > 1) or "one rank"
    yield "mesh", f"{dims}, world size {found['world_size']:_}"
    if (elastic := bound.plan.elastic) is not None:
        yield "elastic", _elastic(bound.plan, elastic)
    # A plan with errors has no essence, and its check should not wait for the import.
    from planc.estimate.estimate import estimate

    estimated = estimate(graph, bound.inventory)
    yield "parameters", f"{found['parameters']:_}, of which rank 0 holds {estimated.num_local_parameters:_}"
    yield "modules", f"{_num_divided(graph)} divided over tp, {plural(_num_units(graph), 'fsdp unit')}"
    accumulation = found["gradient_accumulation"]
    yield "batch", f"{found['tokens_per_step']:_} tokens per step, gradient accumulation {accumulation}"
    memory, hardware = estimated.memory, bound.plan.hardware
    peak = memory.peak.num_bytes
    share = f", {100 * peak / hardware.gpu.memory_bytes:.0f} % of {hardware.gpu.name}" if hardware else ""
    host = f", {format_bytes(memory.host_bytes)} in the host's memory" if memory.host_bytes else ""
    yield "memory", f"about {format_bytes(peak)} per rank at the peak{share}, in {memory.peak_phase}{host}"
    yield "communication", f"{format_bytes(estimated.sent_bytes())} sent per rank and step"


def _elastic(plan: Plan, elastic: ElasticSpec) -> str:
    """`dp_replicate may shrink to 2 or 1, on 4 or 2 ranks`."""
    ranks = [str(smaller.mesh.world_size) for smaller in smaller_plans(plan)]
    sizes = [str(smaller.mesh.size(elastic.on[0])) for smaller in smaller_plans(plan)]
    return f"{elastic.on[0]} may shrink to {' or '.join(sizes)}, on {' or '.join(ranks)} ranks"


def _num_divided(graph: Graph) -> int:
    """Modules of which a rank holds a part; a norm under sequence parallelism stays whole."""
    return sum(
        len(op.modules)
        for op in graph.setup
        if isinstance(op, ShardTensorParallel)
        if any(isinstance(placement, Shard | StridedShard) for _, placement in op.parameters)
    )


def _num_units(graph: Graph) -> int:
    return sum(len(op.groups) for op in graph.setup if isinstance(op, FullyShard))


def overview(bound: BoundPlan, graph: Graph) -> Iterator[Row]:
    """What `planc show` says by default."""
    plan, inventory = bound.plan, bound.inventory
    model = plan.model
    seed = f" of seed {model.seed}" if model.weights is Weights.RANDOM else ""
    weights = f"{model.dtype}, {model.weights} weights{seed}"
    yield "model", f"{inventory.architecture} in {model.hf}, {weights}"
    yield from essence(bound, graph)
    styles = Counter(assignment.style.name for assignment in bound.styles.values())
    if styles:
        yield "styles", ", ".join(f"{name} {number}" for name, number in styles.items())
    if plan.fsdp:
        copies = f", replicas over {plan.fsdp.replicate_on}" if plan.fsdp.replicate_on else ""
        place = ", offloaded to the host" if plan.fsdp.cpu_offload else ""
        yield "fsdp", f"over {', '.join(plan.fsdp.on)}{copies}{place}"
    elif plan.mesh.dp_replicate > 1:
        yield "replicas", "whole over dp_replicate, gradients summed after backward"
    if plan.context_parallel:
        cp = plan.context_parallel
        yield "context parallel", f"{cp.rotate} over {', '.join(cp.on)}, load balancer {cp.load_balancer}"
    if bound.checkpointed:
        some = f", {len(bound.selective)} of them selectively" if bound.selective else ""
        yield "recomputed", f"{plural(len(bound.checkpointed), 'module')}{some}"
    if plan.compile and bound.compiled:
        how = _written(plan.compile, ("backend",))
        yield "compiled", f"{plural(len(bound.compiled), 'module')} by {how}"
    for name, record in (("data", plan.data), ("optimizer", plan.optimizer)):
        yield name, _written(record, ("source", "tokenizer", "kind", "schedule"))
    if plan.checkpoint:
        yield "checkpoint", _checkpoint(plan.checkpoint)
    total = facts(plan, inventory)["total_tokens"]
    yield "train", f"{plan.train.steps:_} steps, {total:_} tokens"


def _checkpoint(checkpoint: CheckpointSpec) -> str:
    when = [f"every {checkpoint.save_every} steps"] if checkpoint.save_every else []
    when += ["after the last step"] if checkpoint.save_last else []
    how = ""
    if isinstance(checkpoint.mode, AsyncSave):
        skips = checkpoint.mode.when_busy is WhenBusy.SKIP
        how = f" while training goes on ({'skipped' if skips else 'waits'} while one is under way)"
    kept = f"the last {checkpoint.keep_last} kept"
    return f"{' and '.join(when) or 'never'}{how}, {kept}, resume {checkpoint.resume}"


def _written(record: object, names: tuple[str, ...]) -> str:
    spec_fields = type(record).__dataclass_fields__  # type: ignore[attr-defined]  # every block is a dataclass
    return ", ".join(
        type_of(spec_fields[name]).render(getattr(record, name)) for name in names if name in spec_fields
    )
