"""Gaps that forward leaves between blocks and that are too small for the loss's tensors.

Expandable segments grow at their ends, and a block goes into the smallest gap that holds it. When logits are
made, everything freed above the activations joins the end of the segment; what was freed under them, or under
the logits, stays a gap while the loss takes the largest tensors of all. These are, in the order of forward:

    the last layer's parameters  freed under the head's
    the last norm's squares      [tokens, hidden] in float32, freed under its output
    the head's input             gathered along the sequence over tp, before it is laid out by samples; as the
                                 head reads it, where the head is frozen and so keeps none for its gradient
    the head's parameters        where it is a unit that is freed after forward
    the logits                   in the head's dtype, freed once the loss has converted them
    copies of a teacher's rows   freed under those that backward reads (distillation.py)

The head's forward computes a loss in chunks: its own parameters are still gathered then. A gap as large as a
tensor of the loss holds that tensor, and counts for nothing. The rehearsal runs the allocator itself
(planc/runtime/rehearsal/measure.py), and tests hold this sum against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.activations import norm_tokens
from planc.estimate.loss import Loss
from planc.estimate.rank_work import RankWork
from planc.estimate.units import Unit
from planc.inventory.schema import Kind
from planc.record import record
from planc.styles.edges import SEQUENCE
from planc.vocab import outwards

SQUARES = "last norm's squares"
_FLOAT32_BYTES = 4


@record
class Gap:
    """Blocks that forward frees, in bytes."""

    name: str
    num_bytes: int


def gaps(work: RankWork, units: tuple[Unit, ...], loss: Loss) -> tuple[Gap, ...]:
    """The gaps that no tensor of the loss fills."""
    narrow = Gap("narrow logits", loss.narrow)
    found = (*_freed_parameters(work, units), _squares(work), _head_input(work), narrow)
    freed = tuple(gap for gap in found if 0 < gap.num_bytes < loss.wide)
    # They are small enough for the other gaps, and go into these first.
    beyond = Gap("copies of a teacher's rows", loss.copies - sum(gap.num_bytes for gap in freed))
    return (*freed, beyond) if 0 < beyond.num_bytes < loss.wide else freed


def _freed_parameters(work: RankWork, units: tuple[Unit, ...]) -> Iterator[Gap]:
    element = work.compute_dtype.size_bytes
    for name, unit in last_units(work, units):
        if unit.reshard_after_forward and not (work.loss_chunks > 1 and name != "last layer"):
            yield Gap(f"{name}'s parameters", element * unit.num_gathered)


def last_units(work: RankWork, units: tuple[Unit, ...]) -> Iterator[tuple[str, Unit]]:
    """The head's own unit and the last one before it, if they exist. The root's stays gathered."""
    head = work.inventory.head
    around = () if head is None else outwards(head.fqn)
    inner = [unit for unit in units if unit.modules != ("",)]
    if inner and any(name in around for name in inner[-1].modules):
        yield "head", inner.pop()
    if inner:
        yield "last layer", inner[-1]


def _squares(work: RankWork) -> Gap:
    """The squares that the last norm averages."""
    norm = next((module for module in reversed(work.inventory.modules) if module.kind is Kind.NORM), None)
    tokens = norm_tokens(work, norm) if norm is not None else 0
    return Gap(SQUARES, tokens * work.inventory.hidden_size * _FLOAT32_BYTES)


def _head_input(work: RankWork) -> Gap:
    """The head's input, and the tensor it is copied from.

    Gathering puts ranks first, and samples must be first: only one sample needs no copy
    (torch/distributed/_functional_collectives.py, all_gather_tensor).
    """
    head = work.inventory.head
    use = work.styles.get(head.fqn) if head is not None else None
    is_copied = use is not None and use.input == SEQUENCE and work.num_samples > 1
    is_freed = head is not None and not work.trains(head)
    whole = work.num_tokens * work.inventory.hidden_size * work.compute_dtype.size_bytes
    return Gap("head's input", whole * (is_copied + is_freed))
