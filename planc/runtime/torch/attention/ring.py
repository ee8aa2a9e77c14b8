"""Ring attention: keys and values travel around the cp ranks, each rank merges one block at a time.

Messages hold key-value heads only, never repeated to the query heads. Gradients of keys and values travel
with them, and return to their own rank after a full turn. Under a sliding window they skip the steps at which
no rank would see a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from planc.devices.attention_kernels import ring_rows, ring_steps
from planc.runtime.torch.attention import kernels
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.sharding import Balance
from planc.runtime.torch.attention.windows import Windows


@dataclass(frozen=True, slots=True)
class Ring:
    """One rank's place in the ring, and how the sequence is laid out on it."""

    group: ProcessGroup
    size: int
    rank: int
    balance: Balance
    documents: Documents | None = None
    window: int | None = None
    bias: Tensor | None = None
    """The window's bias for the queries that a kernel takes at a time, `Windows.tile`."""
    steps: tuple[int, ...] = ()
    """The distances from which keys are needed, in ascending order: 0 is this rank's own."""

    def hops(self, index: int) -> int:
        """The ranks that a message moves by after a step; the last move returns it to its own rank."""
        following = self.steps[index + 1] if index + 1 < len(self.steps) else self.size
        return following - self.steps[index]


@dataclass(frozen=True, slots=True)
class Block:
    """The local queries, and the keys of the visiting shard that they see, along the sequence.

    Of all samples, or of one, in which documents are apart.
    """

    query: slice
    key: slice
    causal: bool
    sample: int | None = None
    bias: Tensor | None = None

    @property
    def samples(self) -> slice:
        return slice(None) if self.sample is None else slice(self.sample, self.sample + 1)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message in flight from the previous rank."""

    incoming: Tensor
    outgoing: Tensor
    """Kept alive until it is sent."""
    work: Any

    def wait(self) -> Tensor:
        self.work.wait()
        return self.incoming.view(self.outgoing.shape)


def ring_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    group: ProcessGroup,
    balance: Balance,
    windows: Windows,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention over the sequence sharded on `group`, as [B, H, S_local, D].

    `query` is [B, H, S_local, D], `key` and `value` [B, Hkv, S_local, D]. With `documents`, tokens attend
    within their own only; with a `window` a position sees itself and the window - 1 before it; `sinks` [H]
    score one more key, whose value is 0, and `softcap` caps the scores of the others. ValueError if a
    headtail shard is odd or if key and value differ in shape.
    """
    if key.shape != value.shape:
        raise ValueError(f"key {tuple(key.shape)} and value {tuple(value.shape)} must have one shape")
    if balance == "headtail" and query.shape[2] % 2:
        raise ValueError(f"a headtail shard has two equal chunks, but its length is {query.shape[2]}")
    size, length = dist.get_world_size(group), query.shape[2]
    is_headtail, bias = balance == "headtail", None
    if window is not None:
        kernel = kernels.block_kernel(query, value=value, has_mask=True, has_softcap=softcap is not None)
        run = length // 2 if is_headtail else length
        rows = ring_rows(num_queries=run, is_math=kernel == kernels.MATH)
        bias = windows.tile(query, rows=rows, window=window)
    steps = ring_steps(size, length=length, window=window, is_headtail=is_headtail)
    ring = Ring(group, size, dist.get_rank(group), balance, documents, window, bias, steps)
    out: Tensor = RingAttention.apply(query, key, value, sinks, scale, softcap, ring)  # type: ignore[no-untyped-call]
    return out


def visible_block(source: int, *, ring: Ring, length: int) -> Block | None:
    """The part of rank `source`'s shard that this rank's queries see; None if they see nothing."""
    everything, half = slice(0, length), length // 2
    if source == ring.rank:
        # Positions ascend within a shard, so its own triangle is causal under either layout.
        return Block(everything, everything, causal=True)
    if ring.balance == "none":
        return Block(everything, everything, causal=False) if source < ring.rank else None
    if source < ring.rank:
        # The source's tail chunk comes after both of ours.
        return Block(everything, slice(0, half), causal=False)
    # Our head chunk comes before both chunks of the source.
    return Block(slice(half, length), everything, causal=False)


def visible_blocks(source: int, *, ring: Ring, length: int) -> tuple[Block, ...]:
    """The parts of rank `source`'s shard that this rank's queries see, each by one kernel.

    Only the edges of a window need a mask.
    """
    if ring.documents is not None or ring.window is not None:
        return tuple(_blocks_of_runs(source, ring=ring, length=length))
    block = visible_block(source, ring=ring, length=length)
    return () if block is None else (block,)


def _blocks_of_runs(source: int, *, ring: Ring, length: int) -> Iterator[Block]:
    """Yield the blocks of documents, or of the sequence, between our positions and the source's that aren't
    later."""
    documents: Iterable[tuple[int | None, tuple[int, int]]] = [(None, (0, ring.size * length))]
    if ring.documents is not None:
        spans = ring.documents.spans()
        documents = [(row, span) for row, places in enumerate(spans) for span in places]
    pairs = product(_runs(ring.rank, ring=ring, length=length), _runs(source, ring=ring, length=length))
    for (own, own_place), (other, other_place) in pairs:
        if other_place > own_place:
            continue
        size = other.stop - other.start
        for sample, (start, end) in documents:
            query = _within(own, own_place, start, end, size=size)
            key = _within(other, other_place, start, end, size=size)
            if query is not None and key is not None:
                block = Block(query, key, causal=own_place == other_place, sample=sample)
                shifts = own_place - own.start, other_place - other.start
                yield from _in_window(block, shifts, ring=ring)


def _in_window(block: Block, shifts: tuple[int, int], *, ring: Ring) -> Iterator[Block]:
    """The parts of a block that are in the window: some queries at a time, with the keys that they see.

    `shifts` make positions of the rows of queries and of keys.
    """
    if ring.window is None or ring.bias is None:
        yield block
        return
    own, other = shifts
    first_key, end_key = block.key.start + other, block.key.stop + other
    # Later queries see none of the keys, and a kernel has no softmax of nothing.
    stop = min(block.query.stop + own, end_key + ring.window - 1)
    for first in range(block.query.start + own, stop, len(ring.bias)):
        end, earliest = min(first + len(ring.bias), stop), first + 1 - ring.window
        low, high = max(first_key, earliest), min(end_key, end)
        is_whole = high <= first + 1 and end - ring.window <= low
        is_triangle = (low, high) == (first, end) and end - first <= ring.window
        is_cut = not is_whole and not is_triangle
        yield Block(
            slice(first - own, end - own),
            slice(low - other, high - other),
            causal=is_triangle,
            sample=block.sample,
            bias=ring.bias[: end - first, low - earliest : high - earliest] if is_cut else None,
        )


def _runs(rank: int, *, ring: Ring, length: int) -> tuple[tuple[slice, int], ...]:
    """Each run of consecutive positions in a rank's shard, with the place of its first."""
    if ring.balance == "none":
        return ((slice(0, length), rank * length),)
    half = length // 2
    return (slice(0, half), rank * half), (slice(half, length), (2 * ring.size - 1 - rank) * half)


def _within(run: slice, place: int, start: int, end: int, *, size: int) -> slice | None:
    """The rows of a run whose places are from `start` to before `end`; None if there are none."""
    first, last = max(start, place), min(end, place + size)
    shift = run.start - place
    return slice(first + shift, last + shift) if first < last else None


def rotate(tensor: Tensor, *, ring: Ring, hops: int) -> Arrival:
    """The tensor of the rank that is `hops` before, in flight; ours goes to the one as many after."""
    outgoing = tensor.contiguous()
    incoming = torch.empty_like(outgoing).flatten()
    send_sizes, receive_sizes = [0] * ring.size, [0] * ring.size
    send_sizes[(ring.rank + hops) % ring.size] = outgoing.numel()
    receive_sizes[(ring.rank - hops) % ring.size] = outgoing.numel()
    # An all-to-all with one partner each way: unlike send and recv, the threaded process group supports it.
    work = dist.all_to_all_single(
        incoming, outgoing.flatten(), receive_sizes, send_sizes, group=ring.group, async_op=True
    )
    return Arrival(incoming, outgoing, work)


def visits(key_value: Tensor, *, ring: Ring) -> Iterator[tuple[Tensor, int]]:
    """The keys and values [2, B, Hkv, S_local, D] of each rank that some rank sees, ours first, and the rank.

    The next message travels while the caller works on this one.
    """
    for index, step in enumerate(ring.steps):
        is_last = index + 1 == len(ring.steps)
        arrival = None if is_last else rotate(key_value, ring=ring, hops=ring.hops(index))
        source = (ring.rank - step) % ring.size
        yield key_value, source
        if arrival is not None:
            key_value = arrival.wait()


def part(tensor: Tensor, rows: slice, samples: slice) -> Tensor:
    """The `rows` of tensor_dim 2 of some samples, contiguous, as the kernels require."""
    return tensor[samples, :, rows].contiguous()


class RingAttention(torch.autograd.Function):
    """Forward and backward each pass the keys and values once around the ring."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        scale: float,
        softcap: float | None,
        ring: Ring,
    ) -> Tensor:
        query, key_value = query.contiguous(), torch.stack((key, value))
        dtype = kernels.accumulation_dtype(query.dtype)
        out = torch.zeros_like(query, dtype=dtype)
        lse = torch.full(query.shape[:3], -torch.inf, dtype=dtype, device=query.device)
        states: list[tuple[Any, ...]] = []
        blocks: list[tuple[Block, ...]] = []
        for (visiting_key, visiting_value), source in visits(key_value, ring=ring):
            blocks.append(visible_blocks(source, ring=ring, length=query.shape[2]))
            for block in blocks[-1]:
                result = kernels.block_forward(
                    part(query, block.query, block.samples),
                    key=part(visiting_key, block.key, block.samples),
                    value=part(visiting_value, block.key, block.samples),
                    causal=block.causal,
                    scale=scale,
                    bias=block.bias,
                    softcap=softcap,
                )
                rows = (block.samples, slice(None), block.query)
                out[rows], lse[rows] = kernels.merge(out[rows], lse[rows], block=result)
                states.append(result.state)
        if sinks is not None:
            out, lse = kernels.with_sinks(out, lse, sinks)
        if out.dtype != query.dtype:
            out = out.to(query.dtype)
        ctx.save_for_backward(query, key_value, sinks, out, lse)
        # In backward the documents may be those of another micro-batch.
        ctx.scale, ctx.softcap, ctx.ring, ctx.states, ctx.blocks = scale, softcap, ring, states, blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key_value, sinks, out, lse = ctx.saved_tensors
        grad_out, states = grad_out.contiguous(), iter(ctx.states)
        grad_query = torch.zeros_like(query, dtype=lse.dtype)
        grad_key_value = torch.zeros_like(key_value, dtype=lse.dtype)
        arrival: Arrival | None = None
        for index, (((visiting_key, visiting_value), _), blocks) in enumerate(
            zip(visits(key_value, ring=ctx.ring), ctx.blocks, strict=True)
        ):
            by_block = [
                kernels.block_backward(
                    part(grad_out, block.query, block.samples),
                    query=part(query, block.query, block.samples),
                    key=part(visiting_key, block.key, block.samples),
                    value=part(visiting_value, block.key, block.samples),
                    merged=kernels.BlockOutput(
                        part(out, block.query, block.samples),
                        part(lse, block.query, block.samples),
                        next(states),
                    ),
                    causal=block.causal,
                    scale=ctx.scale,
                    bias=block.bias,
                    softcap=ctx.softcap,
                )
                for block in blocks
            ]
            if arrival is not None:
                grad_key_value = arrival.wait()
            for block, gradients in zip(blocks, by_block, strict=True):
                grad_query[block.samples, :, block.query] += gradients.query
                grad_key_value[0, block.samples, :, block.key] += gradients.key
                grad_key_value[1, block.samples, :, block.key] += gradients.value
            # One more turn than the keys need: the last returns every gradient to its rank.
            arrival = rotate(grad_key_value, ring=ctx.ring, hops=ctx.ring.hops(index))
        assert arrival is not None, "a ring has at least one rank"
        grad_key, grad_value = arrival.wait().to(key_value.dtype)
        grad_sinks = (
            None if sinks is None else kernels.sinks_gradient(grad_out, out=out, lse=lse, sinks=sinks)
        )
        return grad_query.to(query.dtype), grad_key, grad_value, grad_sinks, None, None, None
