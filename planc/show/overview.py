"""A plan in a dozen lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.figures import plan as of_plan
from planc.graph.extensions import extensions_of
from planc.graph.graph import UNKNOWN_STEPS, Graph
from planc.graph.ops import NameBase, PushExport
from planc.graph.pipeline import pipeline_of
from planc.plan.bind import BoundPlan
from planc.plan.checkpoint import AsyncSave, CheckpointSpec, WhenBusy
from planc.plan.elastic import ElasticSpec
from planc.plan.elastic_meshes import smaller_plans
from planc.plan.keys import type_of
from planc.plan.settle import in_steps
from planc.plan.shares import decimal
from planc.plan.spec import Plan, Weights
from planc.plan.task import CausalLm
from planc.plan.train import Distillation
from planc.show.attention import attention_line
from planc.tables import Row, format_number, interval, plural

if TYPE_CHECKING:
    from planc.estimate.result import Estimate


def essence(bound: BoundPlan, graph: Graph, estimated: Estimate) -> Iterator[Row]:
    """The summary of a successful `check`: mesh, parameters, modules, batch, memory, communication."""
    dims = " x ".join(f"{mesh_dim} {size}" for mesh_dim, size in graph.mesh if size > 1) or "one rank"
    yield "mesh", f"{dims}, world size {of_plan.world_size(graph).number}"
    if (elastic := bound.plan.elastic) is not None:
        yield "elastic", _elastic(bound.plan, elastic)
    # A plan with errors has no summary, and its check should not wait for the import.
    from planc.figures import needs

    parameters = of_plan.parameters(bound.inventory.num_parameters)
    own = needs.parameters_per_rank(estimated)
    fullest = estimated.of_most(lambda rank: rank.num_local_parameters)
    holder = f"a rank{fullest.whose} holds the most," if estimated.ranks else "rank 0 holds"
    yield "parameters", f"{parameters.number}, of which {holder} {own.number}"
    if bound.frozen:
        every = bound.inventory.parameters()
        trained = sum(parameter.num_elements for name, _, parameter in every if name not in bound.frozen)
        yield "trained", f"{trained:_} of the parameters, {100 * trained / parameters.count:.3g} %"
    if (pipeline := pipeline_of(graph)) is not None:
        idle = of_plan.bubble(pipeline).text
        yield "pipeline", f"{pipeline.schedule}, bubble {idle} if stages take equal time"
    modules, units = of_plan.sharded_modules(graph), of_plan.fsdp_units(graph)
    yield "modules", f"{modules.number} sharded over tp, {units.text}"
    accumulation = of_plan.gradient_accumulation(graph)
    yield (
        "batch",
        f"{of_plan.tokens_per_step(graph).text} per step, gradient accumulation {accumulation.number}",
    )
    if bound.plan.train.epochs is not None:
        yield "length", _length(bound.plan, graph)
    if isinstance(bound.plan.train.loss, Distillation):
        yield "teacher", _teacher(bound.plan, bound.plan.train.loss, estimated)
    memory, hardware = estimated.memory, bound.plan.hardware
    peak, where = needs.peak_memory(estimated), f"{needs.peak_phase(estimated).text}{estimated.whose}"
    share = (
        f", {100 * memory.peak.num_bytes / hardware.gpu.memory_bytes:.0f} % of {hardware.gpu.name}"
        if hardware
        else ""
    )
    missing = "".join(f"; {name} is not modeled" for name in estimated.not_modeled)
    host = f", {needs.host_memory(estimated).text} in host memory" if memory.host_bytes else ""
    yield "memory", f"about {peak.text} reserved per rank at the peak{share}, in {where}{host}{missing}"
    sent, number = needs.sent_bytes(estimated), needs.num_collectives(estimated)
    whose = estimated.of_most(lambda rank: rank.sent_bytes()).whose
    yield "communication", f"{sent.text} sent per rank and step, in {number.text}{whose}"
    yield from (("push", f"{op.export} to {op.target}") for op in graph.save if isinstance(op, PushExport))
    used = (f"{own.kind.replace('_', ' ')} {own.entry} of {own.file}" for _, own in extensions_of(graph))
    if extensions := list(dict.fromkeys(used)):
        yield "extensions", ", ".join(extensions)


def _teacher(plan: Plan, loss: Distillation, estimated: Estimate) -> str:
    """`top 64 of models/teacher, 4.00 MiB on disk for each sequence`."""
    from planc.figures import needs  # as above

    each = f"{needs.stored_teacher(estimated).text} on disk for each sequence"
    number = plan.num_sequences
    whole = "" if number is None else f", {needs.stored_teacher(estimated, num_sequences=number).text} in all"
    return f"top {loss.top_k} of {loss.teacher}, {each}{whole}"


def _elastic(plan: Plan, elastic: ElasticSpec) -> str:
    """`dp_replicate may shrink to 2 or 1, on 4 or 2 ranks`."""
    ranks = [str(smaller.mesh.world_size) for smaller in smaller_plans(plan)]
    sizes = [str(smaller.mesh.size(elastic.on[0])) for smaller in smaller_plans(plan)]
    return f"{elastic.on[0]} may shrink to {' or '.join(sizes)}, on {' or '.join(ranks)} ranks"


def overview(bound: BoundPlan, graph: Graph, estimated: Estimate) -> Iterator[Row]:
    """The default output of `planc show`."""
    plan, inventory = bound.plan, bound.inventory
    model = plan.model
    seed = f" of seed {model.seed}" if model.weights is Weights.RANDOM else ""
    weights = f"{model.dtype}, {model.weights} weights{seed}"
    yield "model", f"{inventory.architecture} in {model.hf}, {weights}"
    if model.task != CausalLm():
        yield "task", _written(model, ("task",))
    yield from essence(bound, graph, estimated)
    styles = Counter(assignment.style.name for assignment in bound.styles.values())
    if styles:
        yield "styles", ", ".join(f"{name} {number}" for name, number in styles.items())
    if (experts := graph.experts) is not None:
        rest = of_plan.ranks_per_expert(graph)
        shared = f"each shared by {rest.text}" if rest.count > 1 else "each whole"
        yield "experts", f"on {of_plan.expert_ranks(experts).text} of {', '.join(experts.over)}, {shared}"
    if plan.fsdp:
        copies = f", replicas over {plan.fsdp.replicate_on}" if plan.fsdp.replicate_on else ""
        place = ", offloaded to the CPU" if plan.fsdp.cpu_offload else ""
        ahead = f", {plan.fsdp.prefetch} units gathered ahead" if plan.fsdp.prefetch > 1 else ""
        whole = "" if plan.fsdp.reshard_after_backward else ", parameters gathered once a step"
        yield "fsdp", f"over {', '.join(plan.fsdp.on)}{copies}{place}{ahead}{whole}"
    elif plan.mesh.dp_replicate > 1:
        yield "replicas", "over dp_replicate, gradients reduced after backward"
    if attention := attention_line(estimated):
        yield "attention", f"on {graph.init_mesh.device}: {attention}"
    if plan.context_parallel:
        cp = plan.context_parallel
        yield "context parallel", f"{cp.rotate} over {', '.join(cp.on)}, load balancer {cp.load_balancer}"
    if bound.checkpointed:
        some = f", of which {len(bound.selective)} selectively" if bound.selective else ""
        some += f", {len(bound.offloaded)} from inputs in host memory" if bound.offloaded else ""
        yield "recomputed", f"{of_plan.recomputed_modules(graph).text}{some}"
    if plan.compile and (bound.compiled or plan.compiles_loss):
        how = _written(plan.compile, ("backend",))
        modules = (of_plan.compiled_modules(graph).text,) if bound.compiled else ()
        loss = ("the loss",) if plan.compiles_loss else ()
        yield "compiled", f"{' and '.join((*modules, *loss))} by {how}"
    for name, record in (("data", plan.data), ("optimizer", plan.optimizer)):
        yield name, _written(record, ("source", "tokenizer", "kind", "schedule"))
    if plan.checkpoint:
        has_base = any(isinstance(op, NameBase) for op in graph.setup)
        yield "checkpoint", _checkpoint(plan, plan.checkpoint, has_base=has_base)
    if plan.train.epochs is None:
        yield "train", f"{of_plan.num_steps(graph).text}, {of_plan.total_tokens(graph).text}"


def _length(plan: Plan, graph: Graph) -> str:
    """The epochs, and the steps, the warm-up and the tokens that they take."""
    epochs, schedule = plan.train.epochs, plan.optimizer.schedule
    assert epochs is not None
    written = f"{decimal(epochs)} epoch{'' if epochs == 1 else 's'}"
    if graph.num_steps == UNKNOWN_STEPS or plan.num_sequences is None:
        return f"{written}, steps and warmup known after `planc data prepare`"
    tokens = format_number(plan.num_sequences * plan.data.sequence_length)
    return (
        f"{of_plan.num_steps(graph).text}, {of_plan.total_tokens(graph).text}: {written} of "
        f"{format_number(plan.num_sequences)} sequences, {tokens} tokens; "
        f"warmup of {plural(in_steps(schedule.warmup, graph.num_steps), 'step')}"
    )


def _checkpoint(plan: Plan, checkpoint: CheckpointSpec, *, has_base: bool) -> str:
    every = interval(steps=checkpoint.save_steps, seconds=checkpoint.save_seconds)
    when = [*([every] if every else []), *(["after the last step"] if checkpoint.save_last else [])]
    how = ""
    if isinstance(checkpoint.mode, AsyncSave):
        skips = checkpoint.mode.when_busy is WhenBusy.SKIP
        how = f" while training continues ({'skipped' if skips else 'waits'} while another save is running)"
    num_best = {name: one.keep_best for name, one in plan.data.eval.items() if one.keep_best}
    best = "".join(f" and the best {number} by {name}" for name, number in num_best.items())
    kept = f"keeping the last {checkpoint.keep_last}{best}"
    branch = checkpoint.branches_from
    start = (
        f"resume {checkpoint.resume}" if branch is None else f"resume latest, or else branch from {branch}"
    )
    rest = ", without frozen parameters" if has_base else ""
    return f"{' and '.join(when) or 'never'}{how}{rest}, {kept}, {start}"


def _written(record: object, names: tuple[str, ...]) -> str:
    spec_fields = type(record).__dataclass_fields__  # type: ignore[attr-defined]  # every block is a dataclass
    return ", ".join(
        type_of(spec_fields[name]).render(getattr(record, name)) for name in names if name in spec_fields
    )
