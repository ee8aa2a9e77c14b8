"""The estimate of a graph and its model, and the facts in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from planc.devices.attention_kernels import AttentionUse
from planc.devices.hardware import FITS, Device
from planc.devices.segment import SMALL_BYTES
from planc.estimate.activations import (
    activations,
    context_bytes,
    last_input_bytes,
    offloaded_bytes,
)
from planc.estimate.at_intervals import at_intervals
from planc.estimate.backward import fullest_moment, fullest_product
from planc.estimate.collectives import collectives, replicated_message
from planc.estimate.flops import Flops, flops
from planc.estimate.gaps import gaps, last_units
from planc.estimate.images import encoder_bytes, encoding_bytes, image_bytes
from planc.estimate.kernels import attention_uses, window_mask_bytes
from planc.estimate.loss import loss, stored_sequence_bytes, teacher_bytes
from planc.estimate.parts import Part, parts
from planc.estimate.peak import (
    GAPS,
    Pieces,
    gathering_pool,
    held_bytes,
    peak_bytes,
    peak_parts,
    phases,
    reducing_pool,
)
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.result import Amount, Collective, Estimate, Memory, Place
from planc.estimate.states import ON_HOST, num_local_parameters, saved, staging, states, update_bytes
from planc.estimate.units import Unit, units
from planc.graph.graph import Graph
from planc.graph.ops import PrefetchUnits, SaveCheckpoint
from planc.inventory.products import unmeasured_parts
from planc.inventory.schema import Inventory
from planc.vocab import DType, MeshDim


def estimate(graph: Graph, inventory: Inventory, *, expert_load: int = 1) -> Estimate:
    """Memory and communication of the graph's rank 0, and the work of all ranks.

    In a pipeline each figure is that of the pp rank with the most of it, and `ranks` has them all. The
    inventory must be of the graph's model. With an `expert_load` the rank's experts get that many times the
    rows of an equal share.
    """
    saves = any(isinstance(op, SaveCheckpoint) for op in graph.save)
    found = _estimate(graph, inventory, expert_load)
    return replace(
        found,
        checkpoint=saved(graph, inventory) if saves else None,
        stored_sequence_bytes=stored_sequence_bytes(graph),
        expert_load=expert_load,
    )


def _estimate(graph: Graph, inventory: Inventory, expert_load: int) -> Estimate:
    """The estimate of what ranks hold and do."""
    whole = rank_work(graph, inventory, expert_load=expert_load)
    shared = flops(whole), staging(graph, inventory)
    estimates = tuple(_of_part(one, *shared) for one in parts(graph, inventory, expert_load=expert_load))
    if not estimates:
        return _of_rank(whole, *shared)
    fullest = max(estimates, key=lambda one: one.memory.peak.num_bytes)
    return replace(
        fullest,
        collectives=max(estimates, key=Estimate.sent_bytes).collectives,
        num_local_parameters=max(one.num_local_parameters for one in estimates),
        attention=_of_all_ranks(estimates),
        ranks=estimates,
    )


def _of_all_ranks(found: tuple[Estimate, ...]) -> tuple[AttentionUse, ...]:
    """The attentions of all pp ranks, of each kind with the bytes of the rank that holds the most."""
    kinds: dict[AttentionUse, list[AttentionUse]] = {}
    for one in (use for rank in found for use in rank.attention):
        kinds.setdefault(replace(one, modules=(), pair_bytes=0), []).append(one)
    return tuple(
        replace(
            kind,
            modules=tuple(fqn for one in uses for fqn in one.modules),
            pair_bytes=max(one.pair_bytes for one in uses),
        )
        for kind, uses in kinds.items()
    )


def _of_part(part: Part, counted: Flops, staged: Amount) -> Estimate:
    """The estimate of one pp rank."""
    found = _of_rank(part.work, counted, staged, part)
    place = Place(part.rank, part.stages, part.in_flight)
    return replace(found, collectives=(*found.collectives, part.sends), place=place)


def _of_rank(work: RankWork, counted: Flops, staged: Amount, part: Part | None = None) -> Estimate:
    """The estimate of a rank, with the FLOPs of the whole model and a rank's part of a checkpoint."""
    gathered = units(work)
    return Estimate(
        memory=_memory(work, gathered, staged, part),
        collectives=collectives(work, units=gathered),
        num_local_parameters=num_local_parameters(work),
        flops=counted,
        at_intervals=at_intervals(work),
        attention=attention_uses(work, in_flight=1 if part is None else part.in_flight),
        not_modeled=tuple(_not_modeled(work)),
    )


def _not_modeled(work: RankWork) -> Iterator[str]:
    if work.is_compiled and not (work.fused or work.fuses_loss):
        yield "compile"
    if unmeasured_parts(work.inventory):
        yield "own code of parts of layers"


def estimated_facts(estimated: Estimate, *, device: Device | None = None) -> Mapping[str, int]:
    """The estimate's numbers by their names in `expect`: bytes, elements for parameters, FLOPs.

    Includes `fits` if a device is given.
    """
    peak = estimated.memory.peak.num_bytes
    ranks = estimated.ranks or (estimated,)
    fits = {} if device is None else {"fits": peak <= FITS * device.memory_bytes}
    return {
        "peak_memory": peak,
        "parameters_per_rank": estimated.num_local_parameters,
        "tp_bytes_per_step": max(one.sent_bytes(_over_tp(one)) for one in ranks),
        "fsdp_bytes_per_step": max(one.sent_bytes(_caused(one, "fsdp.shard")) for one in ranks),
        "cp_bytes_per_step": max(one.sent_bytes(_caused(one, "attention")) for one in ranks),
        "sent_bytes_per_step": estimated.sent_bytes(),
        "flops_per_token": estimated.flops.per_token,
        **fits,
    }


def _over_tp(found: Estimate) -> tuple[Collective, ...]:
    return tuple(one for one in found.collectives if one.over == (MeshDim.TP,))


def _caused(found: Estimate, cause: str) -> tuple[Collective, ...]:
    return tuple(one for one in found.collectives if one.cause == cause)


_OF_IMAGES = "planc/estimate/images.py"


def pieces_of(work: RankWork, gathered: tuple[Unit, ...], part: Part | None = None) -> Pieces:
    """The parts of the peak; `part` if the work is that of a pp rank."""
    parameters, optimizer, gradients, *averages = states(work)
    averaged = sum(amount.num_bytes for amount in averages)
    kept, entropy = activations(work), loss(work)
    kept_bytes = kept.kept + window_mask_bytes(work) + last_input_bytes(work)
    left_bytes, later = 0, gathered
    if part is not None:
        kept_bytes, left_bytes = part.kept_bytes, part.deferred_bytes
        if not part.alternates:
            later = tuple(unit for unit in gathered if not unit.reshard_after_backward)
    kept_bytes += teacher_bytes(work) + image_bytes(work)
    here = 0 if work.offloads else 1
    return Pieces(
        states=here * (parameters.num_bytes + optimizer.num_bytes + averaged),
        averages=here * averaged,
        encoder=encoder_bytes(work),
        images=encoding_bytes(work),
        parameters=here * parameters.num_bytes,
        gradients=here * gradients.num_bytes,
        unreduced=work.reduce_dtype.size_bytes
        * sum(prod(layout.tp_shape) for layout in work.with_gradients.values()),
        small_gradients=_small_gradients(work),
        activations=kept_bytes,
        recomputed=kept.recomputed,
        loss=entropy.tensors + entropy.gradients,
        gathered_at_loss=_gathered_at_loss(work, gathered),
        gathered_later=_gathered_at_loss(work, later),
        gaps=gaps(work, gathered, entropy),
        context=context_bytes(work),
        backward=fullest_moment(work, gathered, kept=kept_bytes, again=kept.again),
        weights=fullest_product(work, gathered, kept=left_bytes),
        units=gathered,
        element=work.compute_dtype.size_bytes,
        reduced=work.reduce_dtype.size_bytes,
        casts_parameters=work.compute_dtype is not work.model_dtype,
        casts_gradients=work.reduce_dtype is not _trained_dtype(work),
        ahead=next((op.ahead for op in work.graph.setup if isinstance(op, PrefetchUnits)), 1),
        brought=work.model_dtype.size_bytes if work.offloads else 0,
        accumulates=work.times > 1,
        added=_added(work, gathered),
        spared=0 if part is None else part.spared_bytes,
        update=here * update_bytes(work),
        message=replicated_message(work),
    )


def _small_gradients(work: RankWork) -> int:
    """Bytes of whole gradients for which the allocator's segment of small blocks has no other use.

    Activations that are small blocks leave room for them there.
    """
    if work.num_tokens * work.inventory.hidden_size * work.compute_dtype.size_bytes <= SMALL_BYTES:
        return 0
    sizes = (work.reduce_dtype.size_bytes * prod(layout.tp_shape) for layout in work.with_gradients.values())
    return sum(size for size in sizes if size <= SMALL_BYTES)


def _added(work: RankWork, units: tuple[Unit, ...]) -> int:
    """Bytes of an element of reduced gradients that a micro step adds to those of earlier ones."""
    is_added = work.times > 1 and any(unit.reduces_each for unit in units)
    return _trained_dtype(work).size_bytes if is_added else 0


def _trained_dtype(work: RankWork) -> DType:
    """The dtype of gradients as the optimizer gets them."""
    adapters = work.graph.adapters
    return (adapters.dtype if adapters is not None else None) or work.model_dtype


def _gathered_at_loss(work: RankWork, gathered: tuple[Unit, ...]) -> int:
    """Bytes of units that forward keeps, and of those around the head, whose forward computes chunks."""
    around = [unit for name, unit in last_units(work, gathered) if name != "last layer"]
    kept = [
        unit
        for unit in gathered
        if not unit.reshard_after_forward or (work.loss_chunks > 1 and unit in around)
    ]
    return work.compute_dtype.size_bytes * sum(unit.num_gathered for unit in kept)


def _memory(work: RankWork, gathered: tuple[Unit, ...], staged: Amount, part: Part | None) -> Memory:
    pieces = pieces_of(work, gathered, part)
    rules = "planc/estimate/activations.py"
    waiting = tuple(_waiting(work, part))
    in_flight = "" if part is None else f": {part.in_flight} micro batches in flight, and messages"
    parts = (
        *states(work),
        *_encoder(pieces),
        _closed("activations", pieces.activations, f"kept by all modules for backward{in_flight}", rules),
        _closed("recomputed", pieces.recomputed, "recomputed by one checkpointed module", rules),
        _closed("loss", pieces.loss, "tensors [tokens, vocabulary] in cross entropy's backward", rules),
        _closed(
            GAPS,
            dict(peak_parts(pieces)).get(GAPS, 0),
            "freed blocks too small for the allocations at the peak",
            "planc/estimate/gaps.py, expandable segments",
        ),
        _closed("context", pieces.context, "keys and values in transit over cp", "ring, all-gather, Ulysses"),
        Amount(
            "gradients between micro steps",
            pieces.whole_gradients,
            True,
            "all gradients of a rank, until the last micro step",
            "FSDP2: set_requires_gradient_sync",
        ),
        _closed(
            "gathering pool",
            gathering_pool(pieces),
            f"{pieces.ahead + 1 if pieces.ahead > 1 else 'two'} consecutive units, gathered",
            "FSDP2: copy-in stream",
        ),
        _closed(
            "reducing pool",
            reducing_pool(pieces),
            "reduce-scatter outputs: this rank's gradient shards",
            "FSDP2: reduce stream",
        ),
        staged,
        *waiting,
    )
    peak = _closed(
        "peak",
        peak_bytes(pieces),
        "the sum: states, pools, and the largest phase of the compute stream",
        "a sum over CUDA streams, which have separate pools in the allocator",
    )
    of_phases = tuple((phase.name, phase.num_bytes) for phase in phases(pieces))
    host = staged.num_bytes + (sum(part.num_bytes for part in states(work)) if work.offloads else 0)
    host += sum(one.num_bytes for one in waiting)
    return Memory(parts, peak, of_phases, held_bytes(pieces), peak_parts(pieces), host)


def _encoder(pieces: Pieces) -> Iterator[Amount]:
    """The image encoder, if there is one."""
    if pieces.encoder:
        yield _closed("image encoder", pieces.encoder, "its parameters, whole on every rank", _OF_IMAGES)


def _waiting(work: RankWork, part: Part | None) -> Iterator[Amount]:
    """The inputs that offloaded modules keep in the host's memory."""
    if num_bytes := offloaded_bytes(work) if part is None else part.offloaded_bytes:
        formula = f"inputs of offloaded modules{ON_HOST}"
        source = "planc/runtime/torch/training/offloading.py"
        yield Amount("offloaded activations", num_bytes, True, formula, source)


def _closed(name: str, num_bytes: int, formula: str, source: str) -> Amount:
    return Amount(name, num_bytes, False, formula, source)
