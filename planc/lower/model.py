"""The model as ops: how it is built and loaded, its images, dropout, compiled modules and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from planc.graph import ops
from planc.inventory.adapters import is_of_adapter
from planc.inventory.routers import routers
from planc.inventory.schema import ImageEncoder
from planc.layouts.draws import placed_draws
from planc.layouts.flow import layout_flow
from planc.plan import spec
from planc.plan.bind import BoundPlan
from planc.plan.compile_backends import AotEager, Eager, Inductor, InductorMode
from planc.plan.expert_shards import shares_experts
from planc.plan.positions import grows, rope_parameters
from planc.plan.task import ImageTextToText
from planc.vocab import ImageShape, Task


def build_model(bound: BoundPlan) -> ops.BuildModel:
    """The op that builds the model."""
    plan, inventory = bound.plan, bound.inventory
    build = ops.BuildModel(
        path=plan.model.hf,
        config_digest=inventory.config_digest,
        architecture=inventory.architecture,
        dtype=plan.model.dtype,
        own_dtypes=inventory.own_dtypes(plan.model.dtype),
        kept_in_float32=inventory.kept_in_float32(plan.model.dtype),
        zeroed=() if plan.model.dropout else inventory.random,
        rope=rope_parameters(plan, inventory),
        rope_positions=plan.data.sequence_length if grows(plan, inventory) else None,
        span=plan.span("model.hf"),
    )
    own, classes = plan.model.architecture, (inventory.classes if inventory.new_head else None)
    values = {field.name: getattr(build, field.name) for field in fields(build) if field.name != "op"}
    if own is not None:
        return ops.BuildOwnModel(**values, own=own)
    if inventory.task is Task.EMBEDDING:
        return ops.BuildEmbedder(**values)
    return (
        build if classes is None else ops.BuildClassifier(**values, task=classes.task, labels=classes.labels)
    )


def load_weights(bound: BoundPlan) -> ops.LoadWeights:
    """The op that reads the model's files, and draws a new head."""
    plan, head = bound.plan, bound.inventory.new_head
    path, seed, strip = plan.model.hf, plan.model.seed, plan.model.strip
    span = plan.span("model.weights")
    if head:
        return ops.LoadBase(path=path, seed=seed, strip=strip, new=head, span=span)
    return ops.LoadWeights(path=path, seed=seed, strip=strip, span=span)


def load_image_encoder(bound: BoundPlan) -> Iterator[ops.LoadImageEncoder]:
    """The op that reads the encoder, if the plan trains on images."""
    for encoder, _ in _seen(bound):
        yield ops.LoadImageEncoder(
            path=bound.plan.model.hf,
            strip=bound.plan.model.strip,
            dtype=bound.plan.model.dtype,
            num_parameters=encoder.num_parameters,
            span=bound.plan.span("model.task"),
        )


def encode_images(bound: BoundPlan) -> Iterator[ops.EncodeImages]:
    """The op that encodes a micro-batch's images, if it has any."""
    for encoder, shape in _seen(bound):
        yield ops.EncodeImages(token=encoder.token, shape=shape, span=bound.plan.span("model.task"))


def _seen(bound: BoundPlan) -> Iterator[tuple[ImageEncoder, ImageShape]]:
    task, encoder = bound.plan.model.task, bound.inventory.images
    if isinstance(task, ImageTextToText) and encoder is not None:
        yield encoder, encoder.shape(height=task.height, width=task.width)


def attach_dropout(bound: BoundPlan) -> Iterator[ops.AttachDropout]:
    """One op for all modules of one name that draw the same, in the model's order."""
    plan = bound.plan
    if not any(module.draws for module in bound.inventory.modules):
        return
    families: dict[tuple[str, int, tuple[ops.Draw, ...]], list[str]] = {}
    for module, placed in placed_draws(bound, layout_flow(bound)):
        if not plan.model.dropout and not is_of_adapter(module.fqn):
            continue
        draws = tuple(
            ops.Draw(one.draw.probability, one.draw.dims, one.layout)
            for one in placed
            if one.layout is not None
        )
        name, depth = module.fqn.rpartition(".")[2], module.fqn.count(".")
        families.setdefault((name, depth, draws), []).append(module.fqn)
    for (_, _, draws), modules in families.items():
        yield ops.AttachDropout(
            modules=tuple(modules),
            draws=draws,
            seed=plan.model.seed,
            over=plan.tensor_parallel.on if plan.tensor_parallel else (),
            span=plan.span("model.dropout"),
        )


def compile_modules(bound: BoundPlan) -> Iterator[ops.CompileModules]:
    """One op, if the plan compiles anything."""
    compilation = bound.plan.compile
    if compilation is None or not (bound.compiled or bound.plan.compiles_loss):
        return
    backend, mode = _backend(compilation)
    yield ops.CompileModules(
        backend=backend,
        mode=mode,
        fullgraph=compilation.fullgraph,
        dynamic=compilation.dynamic,
        loss=bound.plan.compiles_loss,
        modules=tuple(bound.compiled),
        span=compilation.span,
    )


def _backend(compilation: spec.CompileSpec) -> tuple[ops.CompileBackend, ops.CompileMode | None]:
    """torch's name of the backend, and the mode if it has modes."""
    match compilation.backend:
        case Inductor(mode=InductorMode.DEFAULT):
            return "inductor", "default"
        case Inductor():
            return "inductor", "max-autotune-no-cudagraphs"
        case AotEager():
            return "aot_eager", None
        case Eager():
            return "eager", None


def shard_experts(bound: BoundPlan) -> Iterator[ops.ShardExperts]:
    """One op for all experts that tokens are dispatched to."""
    spec = bound.plan.expert_parallel
    if spec is not None and bound.experts:
        yield ops.ShardExperts(
            modules=tuple(bound.experts),
            size=spec.size,
            over=spec.on,
            by_features=tuple(fqn for fqn in bound.experts if not shares_experts(bound, fqn)),
            span=spec.span,
        )


def cap_experts(bound: BoundPlan) -> Iterator[ops.CapExperts]:
    """One op for all experts with a capacity, on ranks of their own or not."""
    spec = bound.plan.expert_parallel
    if spec is not None and spec.capacity is not None and bound.capped:
        span = bound.plan.span("expert_parallel.capacity")
        yield ops.CapExperts(modules=tuple(bound.capped), capacity=spec.capacity, span=span)


def count_experts(bound: BoundPlan) -> Iterator[ops.CountExperts]:
    """One op for all experts that are called with the numbers that their router chose.

    Compiled code has no place for a count.
    """
    found = [router for router in routers(bound.inventory) if _is_called_with_numbers(bound, router.experts)]
    layers = tuple((one.experts, one.num_experts) for one in found if not _is_compiled(bound, one.experts))
    if layers:
        yield ops.CountExperts(layers=layers, span=bound.plan.span("train.log_every"))


def _is_called_with_numbers(bound: BoundPlan, fqn: str) -> bool:
    module = bound.inventory.get(fqn)
    return module is not None and module.routing is not None


def _is_compiled(bound: BoundPlan, fqn: str) -> bool:
    return any(fqn == module or fqn.startswith(f"{module}.") for module in bound.compiled)
