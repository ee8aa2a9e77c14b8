"""The first graph of a plan: every op that the plan requests, before any optimization."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph import ops
from planc.graph.graph import UNKNOWN_STEPS, AnyOp, Graph
from planc.inventory.adapters import adapted_layers, adapted_stacks, saved_apart
from planc.lower import losses, model, observing, saving, stages
from planc.lower.data import evaluations, next_batch, open_data, open_evaluations, open_sources
from planc.lower.optimizer import build_optimizer, build_schedule, load_schedule
from planc.lower.stated import stated
from planc.lower.tensor_parallel import shard_tensor_parallel, share_heads
from planc.plan import spec
from planc.plan.attention_calls import (
    attention_calls,
    attention_kind,
    isolates_documents,
)
from planc.plan.bind import BoundPlan
from planc.plan.facts import gradient_accumulation
from planc.plan.optimizer import OwnSchedule
from planc.plan.quantized import NF4_BLOCK
from planc.plan.unit_dtypes import adapters_dtype, compute_dtypes
from planc.plan.units import UnitGroup
from planc.vocab import TOKEN_DIMS, DType, GroupDim, MeshDim, of_experts

_WHOLE_REPLICAS = (MeshDim.DP_REPLICATE,)
"""The dims over which gradients are summed without FSDP."""
_BUCKET_BYTES = 25 * 2**20
"""The size of a bucket, as in DistributedDataParallel. Smaller messages take as long as a message's
latency."""


def lower(bound: BoundPlan) -> Graph:
    """The plan's graph before any pass."""
    plan = bound.plan
    return Graph(
        name=plan.name,
        mesh=tuple(plan.mesh.sizes.items()),
        num_steps=plan.train.steps or UNKNOWN_STEPS,
        setup=tuple(_setup(bound)),
        step=tuple(_step(bound)),
        save=tuple(_save(bound)),
    )


def _setup(bound: BoundPlan) -> Iterator[AnyOp]:
    plan, inventory = bound.plan, bound.inventory
    yield ops.InitMesh(
        sizes=tuple(plan.mesh.sizes.items()),
        backend=plan.mesh.backend,
        timeout_seconds=plan.mesh.timeout,
        span=plan.span("mesh"),
    )
    yield from losses.build_loss(plan)
    if isinstance(plan.optimizer.schedule, OwnSchedule):
        yield load_schedule(plan, plan.optimizer.schedule)
    yield from observing.open_log(plan)
    yield model.build_model(bound)
    yield from _trained(bound)
    yield _attention(bound)
    yield from model.attach_dropout(bound)
    yield from stages.split_pipeline(bound)
    yield from shard_tensor_parallel(bound)
    yield from share_heads(bound)
    yield from model.shard_experts(bound)
    yield from model.cap_experts(bound)
    yield from _recomputation(bound)
    yield from model.compile_modules(bound)
    if plan.fsdp is not None:
        yield from _fsdp(bound, plan.fsdp)
    yield ops.MaterialiseWeights(span=plan.span("model"))
    if plan.model.weights is spec.Weights.RANDOM:
        yield ops.InitWeights(seed=plan.model.seed, span=plan.span("model.weights"))
    else:
        yield model.load_weights(bound)
    yield from model.load_image_encoder(bound)
    if plan.adapter is not None:
        yield _first_adapters(bound, plan.adapter)
    yield from observing.load_readers(plan)
    yield build_optimizer(bound)
    yield build_schedule(plan)
    yield from saving.build_averages(plan)
    yield from open_sources(plan)
    yield open_data(
        plan,
        vocab_size=inventory.vocab_size,
        padding_id=inventory.padding_token,
        start_id=inventory.start_token,
        token_types=inventory.token_types,
        images=inventory.images,
    )
    yield from losses.open_teacher(plan)
    yield from open_evaluations(plan)
    yield from model.count_experts(bound)
    yield from losses.balance_experts(bound)
    # Before a checkpoint is loaded, so the reference of a resumed run is that of its first step.
    yield from losses.compute_references(plan, tuple(_forward_step(bound)))
    yield from saving.name_base(bound)
    yield from saving.resume(plan)


def _first_adapters(bound: BoundPlan, adapter: spec.AdapterSpec) -> ops.InitAdapters | ops.LoadAdapters:
    layers = adapted_layers(bound.inventory)
    if adapter.start is None:
        return ops.InitAdapters(modules=layers, seed=bound.plan.model.seed, span=adapter.span)
    return ops.LoadAdapters(path=adapter.start, modules=layers, span=bound.plan.span("adapter.start"))


def _trained(bound: BoundPlan) -> Iterator[AnyOp]:
    """The ops that decide what is trained."""
    plan = bound.plan
    if plan.adapter is not None:
        yield ops.AttachAdapters(
            modules=adapted_layers(bound.inventory),
            rank=plan.adapter.kind.rank,
            alpha=plan.adapter.kind.alpha,
            rslora=plan.adapter.kind.rslora,
            dropout=plan.adapter.kind.dropout,
            dora=plan.adapter.kind.dora,
            dtype=None if adapters_dtype(plan) is plan.model.dtype else plan.adapter.dtype,
            stacked=adapted_stacks(bound.inventory),
            apart=saved_apart(bound.inventory, bound.frozen),
            span=plan.adapter.span,
        )
    if bound.frozen:
        place = "freeze" if plan.freeze else "adapter" if plan.adapter else "model.hf"
        yield ops.FreezeParameters(parameters=tuple(bound.frozen), span=plan.span(place))
    if bound.quantized:
        yield ops.QuantizeBase(
            modules=tuple(bound.quantized), block=NF4_BLOCK, span=plan.span("adapter.base")
        )


def _attention(bound: BoundPlan) -> ops.AttachAttention:
    plan = bound.plan
    cp, isolates = plan.context_parallel, isolates_documents(plan, bound.inventory)
    calls = attention_calls(plan, bound.inventory)
    if cp is None:
        kind = attention_kind(plan, bound.inventory)
        span = plan.span("model.attention")
        return ops.AttachAttention(
            kind=kind, balance="none", over=(), isolates=isolates, calls=calls, span=span
        )
    return ops.AttachAttention(
        kind=cp.rotate, balance=cp.load_balancer, over=cp.on, isolates=isolates, calls=calls, span=cp.span
    )


def _recomputation(bound: BoundPlan) -> Iterator[AnyOp]:
    """One op for each of the modes in use."""
    modes: dict[ops.CheckpointMode, list[str]] = {"full": [], "selective": [], "offload": []}
    for fqn in bound.checkpointed:
        special: ops.CheckpointMode = "selective" if fqn in bound.selective else "offload"
        modes[special if fqn in bound.selective | bound.offloaded else "full"].append(fqn)
    for mode, fqns in modes.items():
        if fqns:
            yield ops.CheckpointActivations(mode=mode, modules=tuple(fqns), span=bound.checkpointed[fqns[0]])


def _fsdp(bound: BoundPlan, fsdp: spec.FsdpSpec) -> Iterator[AnyOp]:
    """Units of a wave with equal options in one op, then the root with all remaining parameters.

    In a pipeline these are units of their own.
    """
    # Backward needs the root first, so it stays gathered, as FSDP2 has it by default. What a stage holds
    # waits for other micro-batches.
    waits = bound.plan.mesh.pp > 1 and fsdp.reshard_after_backward
    root = UnitGroup(("",), spec.Unit(reshard_after_forward=waits), fsdp.span)
    dtypes = compute_dtypes(bound)
    split = bound.plan.expert_parallel.on if bound.plan.expert_parallel else ()
    alike: dict[tuple[spec.Unit, int, DType | None, tuple[GroupDim, ...]], list[UnitGroup]] = {}
    for group in bound.units:
        over = of_experts(fsdp.on, split=split if group.fqns[0] in bound.experts else ())
        alike.setdefault((group.unit, group.wave, dtypes[group.fqns], over), []).append(group)
    last = (root.unit, 0, dtypes[root.fqns], fsdp.on)
    for (unit, _, param_dtype, over), groups in (
        *alike.items(),
        (last, [*stages.units_of_stages(bound, root), root]),
    ):
        yield ops.FullyShard(
            groups=tuple(group.fqns for group in groups),
            shard_over=over,
            replicate_over=(fsdp.replicate_on,) if fsdp.replicate_on else (),
            reshard_after_forward=unit.reshard_after_forward,
            reshard_after_backward=fsdp.reshard_after_backward,
            reduce_every=fsdp.reduce_every.value,
            param_dtype=param_dtype,
            reduce_dtype=fsdp.reduce_dtype,
            cpu_offload=fsdp.cpu_offload,
            span=groups[0].span,
        )
    if fsdp.prefetch > 1:
        yield _prefetch(bound, fsdp.prefetch)


def _prefetch(bound: BoundPlan, ahead: int) -> ops.PrefetchUnits:
    """More units than the one that FSDP2 gathers ahead by itself."""
    order = {name: index for index, name in enumerate(bound.inventory.names())}
    first = (min(group.fqns, key=order.__getitem__) for group in bound.units)
    units = ("", *sorted(first, key=order.__getitem__))
    return ops.PrefetchUnits(ahead=ahead, units=units, span=bound.plan.span("fsdp.prefetch"))


def _step(bound: BoundPlan) -> Iterator[AnyOp]:
    plan = bound.plan
    everything = tuple(MeshDim)
    tp = plan.tensor_parallel.on if plan.tensor_parallel else ()
    yield from observing.start_profile(plan)
    yield next_batch(plan)
    yield ops.Accumulate(
        times=gradient_accumulation(plan),
        body=tuple(_micro_step(bound)),
        orders=stages.micro_orders(bound),
        span=plan.span("train"),
    )
    if plan.fsdp is None:
        yield ops.AllReduceGradients(
            over=_WHOLE_REPLICAS,
            blocks=bound.inventory.blocks,
            bucket_bytes=_BUCKET_BYTES,
            span=plan.span("mesh.dp_replicate"),
        )
    yield ops.SyncGradients(over=tp, span=plan.span("optimizer"))
    yield from stages.sum_ties(bound)
    yield ops.ClipGradients(
        max_norm=plan.optimizer.clip_grad_norm,
        over=everything,
        span=plan.span("optimizer.clip_grad_norm"),
        **stated(ops.ClipGradients, plan),
    )
    # Before the optimizer, so a NaN or inf loss changes no weight.
    summed = (MeshDim.PP, *TOKEN_DIMS)
    agree = tuple(dim for dim in MeshDim if dim not in summed and bound.plan.mesh.size(dim) > 1)
    yield ops.ReduceMetrics(over=summed, agree_over=agree, span=plan.span("train"))
    yield from observing.guard_step(plan)
    yield from losses.move_biases(bound)
    yield from observing.read_gradients(plan)
    yield ops.StepOptimizer(span=plan.span("optimizer"), **stated(ops.StepOptimizer, plan))
    yield from saving.update_averages(plan)
    yield from observing.read_step(plan)
    yield ops.StepSchedule(span=plan.span("optimizer.schedule"))
    yield from observing.compare_replicas(bound)
    yield from _evaluations(bound)
    yield from observing.read_evaluations(plan)
    yield from observing.agree_to_stop(plan)
    yield ops.Log(every_steps=plan.train.log_every, over=everything, span=plan.span("train.log_every"))
    yield from observing.stop_profile(plan)
    # Last, so a step whose save fails is still logged and traced.
    yield from saving.settle_save(plan)


def _evaluations(bound: BoundPlan) -> Iterator[ops.Evaluate | ops.JudgeEvaluations]:
    plan = bound.plan
    body = tuple(_forward_step(bound))
    for label, name, _ in evaluations(plan):
        yield ops.Evaluate(
            label=label,
            every_steps=plan.data.eval[name].every,
            over=(MeshDim.PP, *TOKEN_DIMS),
            body=body,
            span=plan.span(f"data.eval.{name}"),
        )
    for name, block in plan.data.eval.items():
        if block.patience is not None or block.keep_best:
            yield ops.JudgeEvaluations(
                evaluation=name,
                labels=tuple(label for label, of, _ in evaluations(plan) if of == name),
                patience=block.patience,
                min_delta=block.min_delta,
                keep_best=block.keep_best,
                over=tuple(MeshDim),
                span=plan.span(f"data.eval.{name}.{'keep_best' if block.patience is None else 'patience'}"),
            )


def _micro_step(bound: BoundPlan) -> Iterator[ops.MicroOp]:
    *forward, loss = _forward_step(bound)
    yield from (*forward, *losses.sum_routes(bound), loss)
    sums = () if bound.plan.fsdp else _WHOLE_REPLICAS
    over = tuple(dim for dim in MeshDim if dim in (*sums, *_model_dims(bound.plan)))
    backward = ops.Backward(over=over, span=bound.plan.span("model"))
    yield from stages.passed(bound, backward, "gradients")
    fsdp = bound.plan.fsdp
    reduced = sums if fsdp is None else (fsdp.replicate_on, *fsdp.on)
    yield from stages.weight_gradients(bound, tuple(dim for dim in MeshDim if dim in reduced))


def _forward_step(bound: BoundPlan) -> Iterator[ops.EvaluationOp]:
    plan, cp = bound.plan, bound.plan.context_parallel
    positions = bound.inventory.positions
    yield ops.ShardContext(
        balance=cp.load_balancer if cp else "none",
        buffers=tuple((name, tensor_dim) for name, (tensor_dim, _) in sorted(bound.buffers.items())),
        over=cp.on if cp else (),
        first_position=positions.first or None,
        uncounted_token=positions.uncounted_token,
        span=cp.span if cp else plan.span("data"),
    )
    yield from model.encode_images(bound)
    yield from stages.passed(
        bound, ops.Forward(over=_model_dims(plan), span=plan.span("model")), "activations"
    )
    yield losses.compute_loss(bound)


def _model_dims(plan: spec.Plan) -> tuple[MeshDim, ...]:
    """The mesh dims that the model's own layers and units communicate over."""
    cp = plan.context_parallel.on if plan.context_parallel else ()
    replicas = (plan.fsdp.replicate_on,) if plan.fsdp else ()
    return tuple(dim for dim in MeshDim if dim in (*replicas, *cp, *_weight_dims(plan)))


def _save(bound: BoundPlan) -> Iterator[AnyOp]:
    """A checkpoint precedes an export, so a run whose export fails can resume from its last step."""
    checkpoint = bound.plan.checkpoint
    if checkpoint is None:
        return
    yield from saving.save_checkpoint(bound.plan)
    yield from saving.export_weights(bound, checkpoint, over=_weight_dims(bound.plan))


def _weight_dims(plan: spec.Plan) -> tuple[MeshDim, ...]:
    """The mesh dims over which a weight may be sharded."""
    dims = (*(plan.fsdp.on if plan.fsdp else ()), *(plan.tensor_parallel.on if plan.tensor_parallel else ()))
    return tuple(mesh_dim for mesh_dim in MeshDim if mesh_dim in dims)
