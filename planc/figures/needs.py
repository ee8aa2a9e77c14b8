"""Figures of an estimate: memory, communication per rank, and work.

The collectives of a step are all that it calls, including sums of single numbers (token counts, losses,
norms); logging, saving and setup are not part of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planc.devices.attention_kernels import AttentionUse
from planc.estimate.result import AtInterval, Collective, Estimate, Saved
from planc.figures import plan as of_plan
from planc.figures.figure import Figure, Unit, num_bytes
from planc.vocab import GroupDim


def parameters_per_rank(estimated: Estimate) -> Figure:
    """Elements of the shards of the rank that holds the most: rank 0, or one of the fullest pp rank."""
    return of_plan.parameters_per_rank(estimated.num_local_parameters)


def peak_memory(estimated: Estimate) -> Figure:
    """The memory that a rank reserves at the peak of a step."""
    return num_bytes("peak_memory", estimated.memory.peak.num_bytes)


def uneven_peak_memory(estimated: Estimate) -> Figure:
    """The same of a rank whose experts get more rows than an equal share."""
    return num_bytes("uneven_peak_memory", estimated.memory.peak.num_bytes)


def peak_phase(estimated: Estimate) -> Figure:
    """The part of a step in which `peak_memory` is reached."""
    return Figure("peak_phase", estimated.memory.peak_phase, Unit.PHASE)


def peak_part(estimated: Estimate, name: str) -> Figure:
    """One part of `peak_memory`; the parts add up to it."""
    return num_bytes(f"peak_memory.{name}", dict(estimated.memory.peak_parts).get(name, 0))


def own_most(estimated: Estimate, name: str) -> Figure:
    """The maximum of a part over a step, in device or host memory."""
    return num_bytes(f"memory.{name}", estimated.memory.part(name).num_bytes)


def pair_bytes(use: AttentionUse) -> Figure:
    """The most that attentions of a kind, named by the first module, hold at a time for pairs of tokens."""
    return num_bytes(f"pair_bytes.{use.modules[0]}", use.pair_bytes)


def host_memory(estimated: Estimate) -> Figure:
    """The host memory that a rank permanently holds, without the process itself."""
    return num_bytes("host_memory", estimated.memory.host_bytes)


def checkpoint_size(saved: Saved) -> Figure:
    """The bytes of one checkpoint's tensors."""
    return num_bytes("checkpoint_bytes", saved.num_bytes)


def checkpoints_on_disk(saved: Saved) -> Figure:
    """The bytes of all checkpoints that a run has at one time."""
    return num_bytes("checkpoints_on_disk", saved.num_bytes * saved.at_once)


def left_out_bytes(saved: Saved) -> Figure:
    """The bytes of frozen parameters that a checkpoint leaves to the model's files."""
    return num_bytes("left_out_bytes", saved.left_out_bytes)


def stored_teacher(estimated: Estimate, *, num_sequences: int = 1) -> Figure:
    """The bytes on disk of a teacher's log-probabilities for as many sequences of the data."""
    return num_bytes("stored_teacher_bytes", num_sequences * estimated.stored_sequence_bytes)


def sent_bytes(estimated: Estimate) -> Figure:
    """The bytes that a rank sends in a step."""
    return num_bytes("sent_bytes_per_step", estimated.sent_bytes())


def sent_by(
    collectives: Iterable[Collective], *, over: tuple[GroupDim, ...], kind: str = "", cause: str = ""
) -> Figure:
    """The bytes that a rank sends in a step in one group of ranks: in total, or of one kind and cause."""
    chosen = _chosen(collectives, over=over, kind=kind, cause=cause)
    name = ".".join(("sent_bytes_per_step", *_path(over, kind, cause)))
    return num_bytes(name, sum(one.sent_bytes for one in chosen))


def num_collectives(estimated: Estimate) -> Figure:
    """The number of collectives that a rank calls in a step."""
    return counted_collectives(sum(collective.count for collective in estimated.collectives))


def counted_collectives(number: int) -> Figure:
    """The figure for a number that was counted elsewhere."""
    return Figure("collectives_per_step", number, Unit.COLLECTIVES)


def collectives_by(
    collectives: Iterable[Collective], *, over: tuple[GroupDim, ...], kind: str, cause: str = ""
) -> Figure:
    """The number of one kind that a rank calls in a step in one group of ranks, for every cause or one."""
    chosen = _chosen(collectives, over=over, kind=kind, cause=cause)
    name = ".".join(("collectives_per_step", *_path(over, kind, cause)))
    return Figure(name, sum(one.count for one in chosen), Unit.COLLECTIVES)


def _chosen(
    collectives: Iterable[Collective], *, over: tuple[GroupDim, ...], kind: str, cause: str
) -> Iterator[Collective]:
    return (
        collective
        for collective in collectives
        if collective.over == over and kind in ("", collective.kind) and cause in ("", collective.cause)
    )


def _path(over: tuple[GroupDim, ...], kind: str, cause: str) -> Iterator[str]:
    """The name for all causes is a prefix of the name for each cause."""
    return filter(None, ("+".join(over), kind, cause))


def interval_bytes(one: AtInterval) -> Figure:
    """The bytes that a rank sends whenever an op is due, which are not part of a step's bytes."""
    return num_bytes(f"bytes_when_due.{one.op}", one.sent_bytes)


def interval_steps(one: AtInterval) -> Figure:
    """The steps from one time that an op is due to the next."""
    return Figure(f"steps_between.{one.op}", one.every_steps, Unit.STEPS)


def tokens_per_step(estimated: Estimate) -> Figure:
    return of_plan.num_tokens(estimated.flops.tokens_per_step)


def flops_per_token(estimated: Estimate) -> Figure:
    return Figure("flops_per_token", estimated.flops.per_token, Unit.FLOP)


def flops_per_step(estimated: Estimate) -> Figure:
    """The FLOPs of all ranks, without recomputation."""
    return Figure("flops_per_step", estimated.flops.per_step, Unit.FLOP)


def flops_per_rank(estimated: Estimate) -> Figure:
    """The FLOPs that one rank executes in a step, with recomputation."""
    return Figure("executed_flops_per_rank", estimated.flops.executed_per_rank, Unit.FLOP)
