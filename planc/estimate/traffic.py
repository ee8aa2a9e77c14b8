"""The bytes that elementwise work, the loss and FSDP's copies move through a device's memory in a step.

Bytes for each feature of a token, counted from the operations of transformers' modules, in bfloat16 with
norms and losses in float32; other dtypes in proportion. An eager operation reads its inputs and writes its
output. A fused kernel, or a compiled module, reads and writes once.

    of each feature         eager forward, backward   fused forward, backward
    RMSNorm                 36, 60                    4, 10     cast, square, mean, scale, cast, weight
    gate of two linears     10, 18                    6, 10     activation and product
    activation              4, 6                      4, 6
    rotary, of q and k      24, 24                    4, 4      two products, a rotated copy, a sum
    residual                6, 6                      4, 4
    logits, of vocabulary   20, 20                    4, 4      cast, log-softmax, its gradient, cast
    head's weight, a chunk  12                                  its gradient, added to the sum in float32
    FSDP's gathered element 8                         8         copied out of the message, and cast for it
    FSDP's reduced element  6                         6         copied into the message, in the reduce dtype
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from planc.estimate.activations import weight_width
from planc.estimate.flops import computes_logits_twice
from planc.estimate.loss import logits_shape
from planc.estimate.rank_work import RankWork
from planc.estimate.units import Unit, units
from planc.inventory.schema import Kind, Module
from planc.record import record
from planc.vocab import ancestors


@record
class Traffic:
    """Bytes in forwards and in backwards, and the kernels that the host launches for all of them."""

    forward: float
    backward: float
    kernels: int


@record
class _Cost:
    """Bytes for a feature of a token, forward and backward, and the kernels of a forward."""

    forward: int
    backward: int
    kernels: int


_NORM, _FUSED_NORM = _Cost(36, 60, 6), _Cost(4, 10, 1)
_GATE, _FUSED_GATE = _Cost(10, 18, 2), _Cost(6, 10, 1)
_ACTIVATION = _Cost(4, 6, 1)
_ROTARY, _FUSED_ROTARY = _Cost(24, 24, 10), _Cost(4, 4, 1)
_RESIDUAL, _FUSED_RESIDUAL = _Cost(6, 6, 1), _Cost(4, 4, 0)
_LOGITS, _FUSED_LOGITS = _Cost(20, 20, 4), _Cost(4, 4, 1)
_LINEAR = _Cost(0, 0, 1)
_GATHERED_BYTES, _REDUCED_BYTES = 8, 6
_SUMMED_BYTES = 12
_COUNTED_BYTES = 2
"""The bytes of an element in these counts."""


def traffic(work: RankWork) -> Traffic:
    """The bytes of a rank in a step, recomputation in backward."""
    wide = work.compute_dtype.size_bytes / _COUNTED_BYTES
    forward = backward = 0.0
    kernels = 0
    for fqn, features, cost in _costs(work):
        is_again = work.region(fqn) is not None
        forward += features * cost.forward * wide
        is_passed = work.is_passed(fqn)
        backward += features * (is_passed * cost.backward + is_again * cost.forward) * wide
        kernels += cost.kernels * (1 + 2 * is_passed + is_again)
    forward += _sums_of_chunks(work)
    gathered, reduced, num_units = _fsdp(work)
    return Traffic(
        work.times * forward + gathered[0],
        work.times * backward + gathered[1] + reduced,
        work.times * kernels + num_units,
    )


def _costs(work: RankWork) -> Iterator[tuple[str, int, _Cost]]:
    """(module, its features of all tokens, their cost) of one micro step."""
    tokens, stream = work.num_tokens, _stream_tokens(work)
    attentions = {attention.fqn: attention for attention in work.inventory.attentions}
    for module in work.inventory.modules:
        is_compiled = module.fqn in work.fused
        if module.kind is Kind.NORM:
            is_fused = is_compiled or module.class_name in ("LayerNorm", "RMSNorm")
            yield module.fqn, stream * weight_width(module), _FUSED_NORM if is_fused else _NORM
        elif module.is_linear:
            yield module.fqn, 0, _LINEAR
            inside = any(name in attentions for name in ancestors(module.fqn))
            if not inside and (cost := _before(work, module, is_compiled=is_compiled)) is not None:
                shape = work.tp_shape(module)
                yield module.fqn, tokens * (shape[1] if shape else 0), cost
        if module.fqn in attentions:
            heads, kv_heads = work.heads(attentions[module.fqn])
            if _has_rotary(work):
                features = (heads + kv_heads) * attentions[module.fqn].head_dim
                yield module.fqn, tokens * features, _FUSED_ROTARY if is_compiled else _ROTARY
            # Two residual sums for each attention: its own, and that of the layer's MLP.
            residual = _FUSED_RESIDUAL if is_compiled else _RESIDUAL
            yield module.fqn, 2 * stream * work.inventory.hidden_size, residual
    parts = work.tp if work.vocab_over else 1
    num_labels, width = logits_shape(work)
    cost = _FUSED_LOGITS if work.fuses_loss else _LOGITS
    if computes_logits_twice(work):
        cost = replace(cost, forward=2 * cost.forward)
    yield "", num_labels * (width // parts), cost


def _sums_of_chunks(work: RankWork) -> int:
    """Bytes of the gradients of the head's weight that the chunks of a loss add up."""
    shape = work.tp_shape(work.inventory.head) if work.inventory.head and work.loss_chunks > 1 else None
    return 0 if shape is None else work.loss_chunks * prod(shape) * _SUMMED_BYTES


def _stream_tokens(work: RankWork) -> int:
    return -(-work.num_tokens // work.tp) if work.divides_sequence else work.num_tokens


def _before(work: RankWork, module: Module, *, is_compiled: bool) -> _Cost | None:
    """Return the cost between linear layers and this one; None if something else comes before it."""
    feeding = [work.module(source) for source in module.sources]
    if not feeding or any(not source.is_linear for source in feeding):
        return None
    if len(feeding) == 1:
        return _ACTIVATION
    return _FUSED_GATE if is_compiled else _GATE


def _has_rotary(work: RankWork) -> bool:
    """Whether queries and keys are rotated."""
    return any("Rotary" in module.class_name for module in work.inventory.modules)


def _fsdp(work: RankWork) -> tuple[tuple[float, float], float, int]:
    """Bytes of FSDP's copies: of gathers in forward and in backward, of reductions; and its kernels."""
    gathered = [0.0, 0.0]
    reduced, kernels = 0.0, 0
    for unit in units(work):
        size = _size(work, unit)
        if size == 1:
            continue
        times = work.times if unit.reshard_after_backward else 1
        copied = unit.num_gathered * _GATHERED_BYTES * times
        gathered[0] += copied
        gathered[1] += copied if unit.reshard_after_forward and unit.has_backward else 0
        reduced += unit.num_scattered * _REDUCED_BYTES * unit.num_reductions(work.times)
        kernels += 8 * work.times
    return (gathered[0], gathered[1]), reduced, kernels


def _size(work: RankWork, unit: Unit) -> int:
    return prod(map(work.graph.size, unit.shard_over))
