"""The lines that tell several fields in one sentence, by the label that the fields state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planc.diff.side import Side
from planc.figures.plan import tokens_per_step
from planc.graph import ops
from planc.graph.text import summarise
from planc.tables import every_step, interval, plural

Reader = Callable[[Side], Any]


def _model(side: Side) -> str:
    return f"{side.model.architecture} (config {side.model.config_digest[:12]})"


def _other_dtypes(side: Side) -> str | None:
    """Parameters and buffers with another dtype than `model.dtype`, layers folded."""
    found: dict[str, list[str]] = {}
    for name, dtype in side.model.other_dtypes.items():
        found.setdefault(dtype, []).append(name)
    return "; ".join(f"{dtype} {', '.join(summarise(names))}" for dtype, names in found.items()) or None


def _rope(side: Side) -> tuple[str, ...] | None:
    texts = [" = ".join(map(str, pair)) for op in side.ops(ops.BuildModel) for pair in op.rope]
    return tuple(texts) or None


def _weights(side: Side) -> str:
    load = side.op(ops.LoadWeights)
    return f"pretrained, from {load.path}" if load else "random"


def _seed(side: Side) -> int | None:
    op = side.op(ops.InitWeights) or side.op(ops.LoadWeights)
    return op.seed if op else None


def _context_parallel(side: Side) -> str | None:
    attention = side.op(ops.AttachAttention)
    if attention is None or not attention.over:
        return None if attention is None or attention.kind == "plain" else f"none, {attention.kind} attention"
    return f"{attention.kind} over {', '.join(attention.over)}, load balancer {attention.balance}"


def _sequence_tensors(side: Side) -> str | None:
    context = side.op(ops.ShardContext)
    if context is None or not context.buffers:
        return None
    tensors = ", ".join(f"{name} Shard({tensor_dim})" for name, tensor_dim in context.buffers)
    return f"{tensors}, load balancer {context.balance}"


def _positions(side: Side) -> str | None:
    """None for a model that counts its positions from 0."""
    context = side.op(ops.ShardContext)
    if context is None or context.first_position is None is context.uncounted_token:
        return None
    uncounted = "" if context.uncounted_token is None else f" without tokens of id {context.uncounted_token}"
    return f"from {context.first_position or 0}{uncounted}"


def _dropout(side: Side) -> tuple[str, ...] | None:
    """Probabilities and modules; how ranks hold the tensors changes no mask."""
    found: dict[float, list[str]] = {}
    for op in side.ops(ops.AttachDropout):
        for draw in op.draws:
            found.setdefault(draw.probability, []).extend(op.modules)
    texts = (f"{one} in {', '.join(summarise(tuple(dict.fromkeys(names))))}" for one, names in found.items())
    return tuple(texts) or None


def _expert_parallel(side: Side) -> str | None:
    op = side.op(ops.ShardExperts)
    return f"{', '.join(summarise(op.modules))} on {op.size} ranks of {', '.join(op.over)}" if op else None


def _capacity(side: Side) -> str | None:
    op = side.op(ops.CapExperts)
    return f"{op.capacity} of an equal share, in {', '.join(summarise(op.modules))}" if op else None


def _fsdp(side: Side) -> str | None:
    return " and ".join(dict.fromkeys(map(_unit_dims, side.ops(ops.FullyShard)))) or None


def _unit_dims(op: ops.FullyShard) -> str:
    copies = f", replicas over {', '.join(op.replicate_over)}" if op.replicate_over else ""
    return f"over {', '.join(op.shard_over)}{copies}"


def _unless(default: object, name: str) -> Reader:
    """A field of the units' ops; None with the default, so a plan without units is equal to one with it."""

    def read(side: Side) -> Any:
        values = (getattr(op, name) for op in side.ops(ops.FullyShard))
        return next((value for value in values if value != default), None)

    return read


def _loss_chunks(side: Side) -> str | None:
    """None for a loss of all tokens at once."""
    found = side.op(ops.ComputeLoss)
    if found is None or (found.chunks == 1 and found.head is None and not found.logits):
        return None
    steps = "".join(f", {step}" for step in found.logits)
    return f"{found.chunks} of {found.head}{steps}"


def _schedule_length(side: Side) -> int | None:
    """A constant schedule has no end to move."""
    schedule = side.op(ops.BuildSchedule)
    return None if schedule is None or schedule.kind == "constant" else schedule.num_steps


def _tokens_per_step(side: Side) -> int | None:
    return tokens_per_step(side.graph).count if side.op(ops.OpenData) else None


def _source(side: Side) -> str | None:
    mixed = (f"{op.label}: {op.source}" for op in side.ops(ops.OpenSource))
    data = side.op(ops.OpenData)
    return "; ".join(mixed) or (str(data.source) if data else None)


def _source_weights(side: Side) -> str | None:
    """The shares of a mixture's sources."""
    mixed = tuple(side.ops(ops.OpenSource))
    return ", ".join(f"{op.label} {op.weight or 'by size'}" for op in mixed) or None


def _evaluations(side: Side) -> str | None:
    """Each evaluation's source, size, and interval."""
    every = {op.label: op.every_steps for op in side.ops(ops.Evaluate)}
    shares = [
        f"{op.label}: {f'{op.share} of ' if op.share else ''}{op.source}, "
        f"{plural(op.sequences, 'sequence') if op.sequences else 'all sequences'}, "
        f"{every_step(every.pop(op.label)) if op.label in every else 'never'}"
        for op in side.ops(ops.OpenEvaluation)
    ]
    judged = (f"{op.evaluation} {op.policy}" for op in side.ops(ops.JudgeEvaluations))
    rest = (f"{label}: {every_step(steps)}" for label, steps in every.items())
    return "; ".join((*shares, *rest, *judged)) or None


def _base(side: Side) -> str | None:
    op = side.op(ops.NameBase)
    return f"frozen parameters left to the files in {op.path}" if op else None


def _export(side: Side) -> str | None:
    export = side.op(ops.ExportHf)
    return f"at the {export.when}, {export.dtype}" if export else None


def _adapter_export(side: Side) -> str | None:
    export = side.op(ops.ExportAdapter)
    return f"at the {export.when}" if export else None


def _push(side: Side) -> str | None:
    return "; ".join(f"{op.export} to {op.target}" for op in side.ops(ops.PushExport)) or None


def _save_every(side: Side) -> str | None:
    save = side.op(ops.SaveCheckpoint)
    if save is None:
        return None
    intervals = (interval(steps=save.every_steps), interval(seconds=save.every_seconds))
    return " and ".join(filter(None, intervals)) or None


def _save_mode(side: Side) -> str | None:
    save = side.op(ops.SaveCheckpoint)
    if save is None or save.when_busy is None:
        return save.mode if save else None
    return f"{save.mode}, {save.when_busy} when busy"


def _profile(side: Side) -> str | None:
    profile = side.op(ops.StartProfile)
    if profile is None:
        return None
    memory = ", with memory" if profile.memory else ""
    return f"steps {profile.first_step} to {profile.last_step}{memory}"


READERS: Mapping[str, Reader] = {
    "model": _model,
    "tensors in another dtype": _other_dtypes,
    "model.rope": _rope,
    "model.weights": _weights,
    "model.seed": _seed,
    "context_parallel": _context_parallel,
    "sequence tensors": _sequence_tensors,
    "first position": _positions,
    "dropout": _dropout,
    "expert_parallel": _expert_parallel,
    "expert_parallel.capacity": _capacity,
    "fsdp": _fsdp,
    "fsdp.cpu_offload": _unless(False, "cpu_offload"),
    "fsdp.reshard_after_backward": _unless(True, "reshard_after_backward"),
    "fsdp.reduce_every": _unless("step", "reduce_every"),
    "loss chunks": _loss_chunks,
    "schedule ends at step": _schedule_length,
    "tokens/step": _tokens_per_step,
    "data.source": _source,
    "data.weights": _source_weights,
    "evaluations": _evaluations,
    "checkpoint.base": _base,
    'export "hf"': _export,
    'export "adapter"': _adapter_export,
    "push": _push,
    "checkpoint.save_every": _save_every,
    "checkpoint.mode": _save_mode,
    "profile": _profile,
}
"""The readers of the labels whose fields read better together; the others are shown as their fields hold
them."""
