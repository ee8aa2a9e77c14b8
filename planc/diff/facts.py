"""Single values of a graph: their names, their groups of consequences, and their settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planc.diff.data_facts import BATCH_FACTS, evaluations
from planc.diff.difference import Group
from planc.diff.fact import Fact, of_op
from planc.diff.side import Side
from planc.graph.ops import (
    AllReduceGradients,
    AttachAttention,
    AttachDropout,
    BuildModel,
    BuildOptimizer,
    BuildSchedule,
    ClipGradients,
    CompareReplicas,
    ExportHf,
    FullyShard,
    GuardStep,
    InitMesh,
    InitWeights,
    LoadWeights,
    Log,
    OpenData,
    OpenLog,
    PrefetchUnits,
    ResumeCheckpoint,
    SaveCheckpoint,
    ShardContext,
    StartProfile,
)
from planc.graph.text import summarise
from planc.vocab import MESH_DIMS, MeshDim


def _mesh_size(mesh_dim: MeshDim) -> Callable[[Side], Any]:
    return lambda side: side.graph.size(mesh_dim)


def _model(side: Side) -> str:
    return f"{side.model.architecture} (config {side.model.config_digest[:12]})"


def _context_parallel(side: Side) -> str | None:
    attention = side.op(AttachAttention)
    if attention is None or not attention.over:
        return None
    return f"{attention.kind} over {', '.join(attention.over)}, load balancer {attention.balance}"


def _sequence_tensors(side: Side) -> str | None:
    context = side.op(ShardContext)
    if context is None or not context.buffers:
        return None
    tensors = ", ".join(f"{name} Shard({tensor_dim})" for name, tensor_dim in context.buffers)
    return f"{tensors}, load balancer {context.balance}"


def _positions(side: Side) -> str | None:
    """None for a model that counts its positions from 0."""
    context = side.op(ShardContext)
    if context is None or context.first_position is None is context.uncounted_token:
        return None
    uncounted = "" if context.uncounted_token is None else f" without tokens of id {context.uncounted_token}"
    return f"from {context.first_position or 0}{uncounted}"


def _fsdp(side: Side) -> str | None:
    return _of_all_units(side, _unit_dims)


def _unit_dims(op: FullyShard) -> str:
    copies = f", replicas over {', '.join(op.replicate_over)}" if op.replicate_over else ""
    return f"over {', '.join(op.shard_over)}{copies}"


def _units_fact(group: Group, name: str, default: object) -> Fact:
    """A field of the units' ops; None with the default, so a plan without units is equal to one with it."""

    def read(side: Side) -> Any:
        values = (getattr(op, name) for op in side.ops(FullyShard))
        return next((value for value in values if value != default), None)

    return Fact(group, f"fsdp.{name}", f"fsdp.{name}", read)


def _other_dtypes(side: Side) -> str | None:
    """Parameters and buffers with another dtype than `model.dtype`, layers folded."""
    found: dict[str, list[str]] = {}
    for name, dtype in side.model.other_dtypes.items():
        found.setdefault(dtype, []).append(name)
    return "; ".join(f"{dtype} {', '.join(summarise(names))}" for dtype, names in found.items()) or None


def _unit_dtype(name: str) -> Callable[[Side], str | None]:
    return lambda side: _of_all_units(side, lambda op: getattr(op, name))


def _of_all_units(side: Side, read: Callable[[FullyShard], str | None]) -> str | None:
    """The units' value, which in a plan is only one; all values if an artifact mixes them."""
    found = dict.fromkeys(map(read, side.ops(FullyShard)))
    return next(iter(found), None) if len(found) < 2 else " and ".join(str(value) for value in found)


def _weights(side: Side) -> str:
    load = side.op(LoadWeights)
    return f"pretrained, from {load.path}" if load else "random"


def _strip(side: Side) -> str | None:
    load = side.op(LoadWeights)
    return load.strip if load else None


def _seed(side: Side) -> int | None:
    op = side.op(InitWeights) or side.op(LoadWeights)
    return op.seed if op else None


def _rope(side: Side) -> tuple[str, ...] | None:
    texts = [" = ".join(map(str, pair)) for op in side.ops(BuildModel) for pair in op.rope]
    return tuple(texts) or None


def _dropout(side: Side) -> tuple[str, ...] | None:
    """Probabilities and modules; how ranks hold the tensors changes no mask."""
    found: dict[float, list[str]] = {}
    for op in side.ops(AttachDropout):
        for draw in op.draws:
            found.setdefault(draw.probability, []).extend(op.modules)
    texts = (f"{one} in {', '.join(summarise(tuple(dict.fromkeys(names))))}" for one, names in found.items())
    return tuple(texts) or None


def _schedule_length(side: Side) -> int | None:
    """A constant schedule has no end to move."""
    schedule = side.op(BuildSchedule)
    return None if schedule is None or schedule.kind == "constant" else schedule.num_steps


REDUCE_DTYPE = Fact(Group.NUMERICS, "fsdp.reduce_dtype", "fsdp.reduce_dtype", _unit_dtype("reduce_dtype"))
REDUCE_EVERY = _units_fact(Group.NUMERICS, "reduce_every", "step")

FSDP_DIMS = Fact(Group.LAYOUT, "fsdp", "fsdp", _fsdp)


def _export(side: Side) -> str | None:
    export = side.op(ExportHf)
    return f"at the {export.when}, {export.dtype}" if export else None


def _save_mode(side: Side) -> str | None:
    save = side.op(SaveCheckpoint)
    if save is None or save.when_busy is None:
        return save.mode if save else None
    return f"{save.mode}, {save.when_busy} when busy"


def _trackers(side: Side) -> str | None:
    """Each tracker with its settings in the plan."""
    opened = side.op(OpenLog)
    return ", ".join(map(str, opened.trackers)) or None if opened else None


def _profile(side: Side) -> str | None:
    profile = side.op(StartProfile)
    if profile is None:
        return None
    memory = ", with memory" if profile.memory else ""
    return f"steps {profile.first_step} to {profile.last_step}{memory}"


def _guarded(name: str) -> Callable[[Side], str | None]:
    """The action for such a step, if the plan has a guard."""

    def read(side: Side) -> str | None:
        guard = side.op(GuardStep)
        found = getattr(guard, name) if guard else None
        return None if found is None else str(found)

    return read


def _elastic(side: Side) -> str | None:
    elastic = side.plan.elastic if side.plan else None
    return f"{elastic.on[0]} may be {', '.join(map(str, elastic.sizes))}" if elastic else None


def _max_restarts(side: Side) -> int | None:
    return side.plan.elastic.max_restarts if side.plan and side.plan.elastic else None


def _epochs(side: Side) -> str | None:
    data = side.op(OpenData)
    return data.epochs or None if data is not None else None


LAYOUT_FACTS: tuple[Fact, ...] = (
    Fact(Group.LAYOUT, "model", "model.hf", _model),
    *(
        Fact(Group.LAYOUT, f"mesh.{mesh_dim}", f"mesh.{mesh_dim}", _mesh_size(mesh_dim), "world_size")
        for mesh_dim in MESH_DIMS
    ),
    FSDP_DIMS,
    Fact(Group.LAYOUT, "gradients summed over", "mesh.dp_replicate", of_op(AllReduceGradients, "over")),
    _units_fact(Group.LAYOUT, "cpu_offload", False),
    Fact(Group.LAYOUT, "fsdp.prefetch", "fsdp.prefetch", of_op(PrefetchUnits, "ahead")),
    _units_fact(Group.LAYOUT, "reshard_after_backward", True),
    Fact(Group.LAYOUT, "context_parallel", "context_parallel", _context_parallel),
    Fact(Group.LAYOUT, "sequence tensors", "context_parallel", _sequence_tensors),
)

NUMERICS_FACTS: tuple[Fact, ...] = (
    Fact(Group.NUMERICS, "model.weights", "model.weights", _weights),
    Fact(Group.NUMERICS, "model.strip", "model.strip", _strip),
    Fact(Group.NUMERICS, "model.seed", "model.seed", _seed),
    Fact(Group.NUMERICS, "fields of config.json set to 0", "model.dropout", of_op(BuildModel, "zeroed")),
    Fact(Group.NUMERICS, "model.rope", "model.rope", _rope),
    Fact(Group.NUMERICS, "rope's positions", "data.sequence_length", of_op(BuildModel, "rope_positions")),
    Fact(Group.NUMERICS, "dropout", "model.dropout", _dropout),
    Fact(Group.NUMERICS, "model.dtype", "model.dtype", lambda side: side.model.dtype),
    Fact(Group.NUMERICS, "tensors in another dtype", "model.dtype", _other_dtypes),
    Fact(Group.NUMERICS, "first position", "model.hf", _positions),
    Fact(Group.NUMERICS, "fsdp.param_dtype", "fsdp.param_dtype", _unit_dtype("param_dtype")),
    REDUCE_DTYPE,
    REDUCE_EVERY,
    Fact(Group.NUMERICS, "optimizer", "optimizer.kind", of_op(BuildOptimizer, "kind")),
    Fact(Group.NUMERICS, "optimizer lr", "optimizer.kind.lr", of_op(BuildOptimizer, "lr")),
    Fact(Group.NUMERICS, "optimizer betas", "optimizer.kind.betas", of_op(BuildOptimizer, "betas")),
    Fact(Group.NUMERICS, "optimizer eps", "optimizer.kind.eps", of_op(BuildOptimizer, "eps")),
    Fact(Group.NUMERICS, "optimizer momentum", "optimizer.kind.momentum", of_op(BuildOptimizer, "momentum")),
    Fact(Group.NUMERICS, "optimizer nesterov", "optimizer.kind.nesterov", of_op(BuildOptimizer, "nesterov")),
    Fact(
        Group.NUMERICS,
        "optimizer implementation",
        "optimizer.kind.implementation",
        of_op(BuildOptimizer, "implementation"),
    ),
    Fact(
        Group.NUMERICS,
        "optimizer.clip_grad_norm",
        "optimizer.clip_grad_norm",
        of_op(ClipGradients, "max_norm"),
    ),
    Fact(Group.NUMERICS, "schedule", "optimizer.schedule", of_op(BuildSchedule, "kind")),
    Fact(
        Group.NUMERICS,
        "schedule warmup steps",
        "optimizer.schedule.warmup",
        of_op(BuildSchedule, "warmup_steps"),
    ),
    Fact(
        Group.NUMERICS,
        "schedule decay steps",
        "optimizer.schedule.decay",
        of_op(BuildSchedule, "decay_steps"),
    ),
    Fact(
        Group.NUMERICS,
        "schedule min_factor",
        "optimizer.schedule.min_factor",
        of_op(BuildSchedule, "min_factor"),
    ),
    Fact(Group.NUMERICS, "schedule ends at step", "train.steps", _schedule_length),
)

CHECKPOINT_FACTS: tuple[Fact, ...] = (Fact(Group.CHECKPOINT, 'export "hf"', "checkpoint.export.hf", _export),)

RUN_FACTS: tuple[Fact, ...] = (
    Fact(Group.RUN, "evaluations", "data.eval", evaluations),
    Fact(Group.RUN, "data.prefetch", "data.prefetch", of_op(OpenData, "prefetch")),
    Fact(Group.RUN, "data.skip_bad", "data.skip_bad", of_op(OpenData, "skip_bad")),
    Fact(Group.RUN, "model.hf", "model.hf", lambda side: side.model.path),
    Fact(Group.RUN, "train.steps", "train.steps", lambda side: side.graph.num_steps or None),
    Fact(Group.RUN, "train.epochs", "train.epochs", _epochs),
    Fact(Group.RUN, "sequences of an epoch", "train.epochs", of_op(OpenData, "num_sequences")),
    Fact(Group.RUN, "logging.per_rank", "logging.per_rank", of_op(OpenLog, "per_rank")),
    Fact(Group.RUN, "logging.tracker", "logging.tracker", _trackers),
    Fact(Group.RUN, "profile", "profile", _profile),
    Fact(Group.RUN, "elastic", "elastic", _elastic),
    Fact(Group.RUN, "elastic.max_restarts", "elastic.max_restarts", _max_restarts),
    # Here, since a run that a spike stopped may resume with a guard that skips it.
    Fact(Group.RUN, "guard.nonfinite", "guard.nonfinite", _guarded("nonfinite")),
    Fact(Group.RUN, "guard.loss_spike", "guard.loss_spike", _guarded("loss_spike")),
    Fact(Group.RUN, "guard.replicas_every", "guard.replicas_every", of_op(CompareReplicas, "every_steps")),
    Fact(Group.RUN, "train.log_every", "train.log_every", of_op(Log, "every_steps")),
    Fact(Group.RUN, "checkpoint.save_every", "checkpoint.save_every", of_op(SaveCheckpoint, "every_steps")),
    Fact(Group.RUN, "checkpoint.save_last", "checkpoint.save_last", of_op(SaveCheckpoint, "at_end")),
    Fact(Group.RUN, "checkpoint.keep_last", "checkpoint.keep_last", of_op(SaveCheckpoint, "keep_last")),
    Fact(Group.RUN, "checkpoint.mode", "checkpoint.mode", _save_mode),
    Fact(Group.RUN, "checkpoint.resume", "checkpoint.resume", of_op(ResumeCheckpoint, "policy")),
    Fact(Group.RUN, "mesh.backend", "mesh.backend", of_op(InitMesh, "backend")),
    Fact(Group.RUN, "mesh.timeout (s)", "mesh.timeout", of_op(InitMesh, "timeout_seconds")),
)

KEY_FACTS = frozenset(
    fact.name for fact in (*LAYOUT_FACTS, *BATCH_FACTS, *NUMERICS_FACTS, *RUN_FACTS) if fact.is_key
)
